package guestmem

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/rawcall"
)

// Map maps a range of the file fd at gpa. In the file, the range begins at offset. The parameter
// length is the length of the range in bytes. The mapping is copy-on-write: the guest reads the
// file, and its writes stay private. The mapping replaces the previous content. The parameters gpa,
// length and offset must be multiples of PageSize, and the range must be in one region.
//
// Preconditions: the vCPUs are stopped and the devices quiesced. As an exception, vCPUs and devices
// may run if nothing can write to the range and the file has the same bytes as the memory.
func (m *Memory) Map(gpa GPA, length uint64, fd int, offset uint64) error {
	flags := unix.MAP_PRIVATE | unix.MAP_FIXED | unix.MAP_NORESERVE
	v, err := m.remap(gpa, length, fd, offset, flags)
	if err != nil {
		return err
	}
	return smallPages(v)
}

// MapLayers maps all extents of a memory map, as Map maps one extent. The extents must have been
// checked. The descriptors of the layers are in files. MapLayers makes the system calls without
// informing Go's scheduler.
func (m *Memory) MapLayers(extents []vm.Extent, files []int) error {
	for _, e := range extents {
		v, err := m.pages(GPA(e.GPA), e.Length, e.Offset)
		if err != nil {
			return err
		}
		if err := rawcall.MapOver(v, files[e.Layer], e.Offset); err != nil {
			return fmt.Errorf("map guest memory %#x+%#x: %w", e.GPA, e.Length, err)
		}
	}
	if len(extents) == 0 {
		return nil
	}
	// Disable huge pages for each region and not for each extent, because there may be hundreds of
	// extents.
	for i := range m.regions {
		if err := smallPages(m.regions[i].host); err != nil {
			return err
		}
	}
	return nil
}

// Clear fills a range of memory with zeros: length bytes, beginning at gpa.
//
// Preconditions: the vCPUs are stopped and the devices quiesced.
func (m *Memory) Clear(gpa GPA, length uint64) error {
	flags := unix.MAP_PRIVATE | unix.MAP_FIXED | unix.MAP_NORESERVE | unix.MAP_ANONYMOUS
	v, err := m.remap(gpa, length, -1, 0, flags)
	if err != nil {
		return err
	}
	return smallPages(v)
}

// Own makes all pages of the range private. If a page still belongs to a file, a copy replaces the
// page. The guest and the devices may run during the call. The pages must not be write-protected.
func (m *Memory) Own(gpa GPA, length uint64) error {
	v, err := m.view(gpa, int(length))
	if err != nil {
		return err
	}
	for {
		switch err := unix.Madvise(v, unix.MADV_POPULATE_WRITE); err {
		case nil:
			return nil
		case unix.EINTR, unix.EAGAIN:
		default:
			return fmt.Errorf("copy %d bytes of guest memory: %w", length, err)
		}
	}
}

// OwnNow is like Own, for a few pages that are already in memory. The system call takes almost no
// time then. So OwnNow does not inform Go's scheduler of the call, and no other thread wakes.
func (m *Memory) OwnNow(gpa GPA, length uint64) error {
	v, err := m.view(gpa, int(length))
	if err != nil || len(v) == 0 {
		return err
	}
	for {
		switch err := rawcall.Advise(v, unix.MADV_POPULATE_WRITE); {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		default:
			return fmt.Errorf("copy %d bytes of guest memory: %w", length, err)
		}
	}
}

// Release drops the private copies of the whole pages in a view of guest memory. The next access to
// such a page finds the content of the layer below it, or zeros. The guest and the devices may run
// during the call. The pages must not be write-protected, because a frozen page would lose its
// content.
//
// Release ignores errors, because the only effect is that a page stays in memory.
func (m *Memory) Release(view []byte) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(view)))
	skip := int(-at % PageSize)
	if whole := (len(view) - skip) / PageSize * PageSize; whole > 0 {
		_ = unix.Madvise(view[skip:skip+whole], unix.MADV_DONTNEED)
	}
}

// detachBytes is the number of bytes that Detach copies at a time. Detach cannot copy all memory at
// once, because the memory limit of the process leaves no room for a second copy.
const detachBytes = 1 << 20

// Detach makes the pages at gpa independent of their file. The pages must already be private
// copies, but their mapping still keeps the file alive. Detach replaces that mapping with anonymous
// memory. After an error, some pages may still depend on the file, but all pages keep their
// content.
//
// Preconditions: the vCPUs are stopped and the devices quiesced.
func (m *Memory) Detach(gpa GPA, length uint64) error {
	v, err := m.view(gpa, int(length))
	if err != nil {
		return err
	}
	bytes := make([]byte, min(length, detachBytes))
	for len(v) > 0 {
		n := copy(bytes, v)
		if err := m.Clear(gpa, uint64(n)); err != nil {
			return err
		}
		copy(v, bytes[:n])
		v, gpa = v[n:], gpa+GPA(n)
	}
	return nil
}

// remap maps fd at a range of guest memory and returns the range's bytes.
func (m *Memory) remap(gpa GPA, length uint64, fd int, offset uint64, flags int) ([]byte, error) {
	v, err := m.pages(gpa, length, offset)
	if err != nil {
		return nil, err
	}
	addr := unsafe.Pointer(unsafe.SliceData(v))
	if _, err := unix.MmapPtr(fd, int64(offset), addr, uintptr(length), unix.PROT_READ|unix.PROT_WRITE,
		flags); err != nil {
		return nil, fmt.Errorf("map guest memory %#x+%#x: %w", uint64(gpa), length, err)
	}
	return v, nil
}

// pages returns the bytes of a range. It returns an error if the range or offset is not valid for a
// mapping.
func (m *Memory) pages(gpa GPA, length, offset uint64) ([]byte, error) {
	if (uint64(gpa)|length|offset)%PageSize != 0 || length == 0 || length > m.Size() {
		return nil, fmt.Errorf("map guest memory %#x+%#x from offset %#x: not whole pages of it", uint64(gpa), length, offset)
	}
	return m.view(gpa, int(length))
}

// smallPages disables huge pages in a range. Copy-on-write and dirty tracking work page by page: in
// a huge page, a single written byte would make 2 MiB dirty.
func smallPages(v []byte) error {
	if err := rawcall.Advise(v, unix.MADV_NOHUGEPAGE); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("disable huge pages for guest memory: %w", err)
	}
	return nil
}

// Linear returns the position of gpa in the memory without the device hole. This position is also
// the offset of gpa in the file of a memory layer. The result is valid only for addresses inside a
// region.
func Linear(gpa GPA) uint64 {
	if gpa >= HoleEnd {
		return uint64(gpa - (HoleEnd - HoleStart))
	}
	return uint64(gpa)
}
