package blk

import "os"

// SwapTop changes the top at once.
func (o *Overlay) SwapTop(newTop, frozen *os.File) error {
	s, err := o.prepareSwap(newTop, frozen)
	if err == nil {
		s.commit()
	}
	return err
}

// SwapTop changes the top at once.
func (d *Device) SwapTop(newTop, frozen *os.File) error {
	s, err := d.PrepareSwap(newTop, frozen)
	if err == nil {
		s.Commit()
	}
	return err
}
