package sparse

import (
	"context"
	"errors"
	"os"
)

// RoomEvery is how many bytes are written between two calls of Filler.Room.
const RoomEvery = 64 << 20

// Filler writes a file in ascending order of offsets.
type Filler struct {
	Ctx   context.Context
	File  *os.File
	Room  func() error // returns an error if there is too little space; called before each RoomEvery bytes
	Zeros []Part       // parts of the file that must have no holes, ascending

	next    uint64 // the file is complete up to this offset
	begun   bool
	written uint64 // bytes written since the last call of Room
}

var zeroBlock [1 << 20]byte

// Write writes p at an offset. The offset must be after the bytes that are already written.
func (w *Filler) Write(at uint64, p []byte) error {
	if err := w.FillUntil(at); err != nil {
		return err
	}
	w.next = at + uint64(len(p))
	return w.put(int64(at), p)
}

// FillUntil writes zeros to those parts in w.Zeros that are not yet written, up to the offset end.
func (w *Filler) FillUntil(end uint64) error {
	for len(w.Zeros) > 0 {
		z := w.Zeros[0]
		at, stop := max(z.Start, int64(w.next)), min(z.End, int64(end))
		for at < stop {
			n := min(stop-at, int64(len(zeroBlock)))
			if err := w.put(at, zeroBlock[:n]); err != nil {
				return err
			}
			at += n
		}
		if z.End > int64(end) {
			return nil
		}
		w.Zeros = w.Zeros[1:]
	}
	return nil
}

func (w *Filler) put(at int64, p []byte) error {
	if w.written += uint64(len(p)); !w.begun || w.written >= RoomEvery {
		w.begun, w.written = true, 0
		if err := errors.Join(w.Ctx.Err(), w.Room()); err != nil {
			return err
		}
	}
	_, err := w.File.WriteAt(p, at)
	return err
}
