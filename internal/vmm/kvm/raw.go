package kvm

import (
	"encoding/binary"
	"errors"
	"unsafe"
)

// State is a KVM struct that is saved and restored as raw bytes. Its layout is fixed,
// little-endian, and the same on every x86-64 Linux.
type State interface {
	Regs | Sregs | XSave | XCRs | DebugRegs | VCPUEvents | MPState | LAPIC | IRQChip | CPUIDEntry | MSREntry
}

// Raw returns the bytes of v, without copying.
func Raw[T State](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// RawSlice returns the bytes of all elements of v, without copying.
func RawSlice[T State](v []T) []byte {
	var zero T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), uintptr(len(v))*unsafe.Sizeof(zero))
}

// SetRawSlice is the inverse of RawSlice.
func SetRawSlice[T State](p []byte) ([]T, error) {
	var zero T
	size := int(unsafe.Sizeof(zero))
	if len(p)%size != 0 {
		return nil, errors.New("KVM state array of the wrong length")
	}
	v := make([]T, len(p)/size)
	copy(RawSlice(v), p)
	return v, nil
}

// Count returns how many registers x has (struct kvm_xcrs, nr_xcrs).
func (x *XCRs) Count() uint32 { return binary.LittleEndian.Uint32(x.Raw[:]) }
