package guestmem

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// LoadUint16 reads the aligned little-endian 16-bit word at gpa with acquire semantics: later reads
// see everything that the guest wrote before it stored this word.
func (m *Memory) LoadUint16(gpa GPA) (uint16, error) {
	w, shift, err := m.word(gpa)
	if err != nil {
		return 0, err
	}
	return uint16(atomic.LoadUint32(w) >> shift), nil
}

// StoreUint16 writes the aligned little-endian 16-bit word at gpa. It is a full barrier: the guest
// sees the caller's earlier writes before this write, and the caller's later loads happen after
// this write is visible to the guest. The suppression of virtqueue notifications needs such a
// barrier (virtio 1.2 §2.7.7.1).
func (m *Memory) StoreUint16(gpa GPA, v uint16) error {
	if _, err := m.WriteView(gpa&^3, 4); err != nil {
		return err
	}
	w, shift, err := m.word(gpa)
	if err != nil {
		return err
	}
	for {
		// The guest may write the other half of w at the same time, so this exchange must not
		// change that half.
		old := atomic.LoadUint32(w)
		if atomic.CompareAndSwapUint32(w, old, old&^(0xffff<<shift)|uint32(v)<<shift) {
			return nil
		}
	}
}

// word returns the aligned 32-bit word that contains the 16 bits at gpa, and the position of these
// bits in that word.
func (m *Memory) word(gpa GPA) (w *uint32, shift uint, err error) {
	if gpa%2 != 0 {
		return nil, 0, fmt.Errorf("%w: 16-bit word at odd address %#x", ErrBounds, uint64(gpa))
	}
	v, err := m.ReadView(gpa&^3, 4)
	if err != nil {
		return nil, 0, err
	}
	return (*uint32)(unsafe.Pointer(unsafe.SliceData(v))), uint(gpa&2) * 8, nil
}
