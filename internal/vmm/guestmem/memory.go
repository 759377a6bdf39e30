// Package guestmem provides the guest physical address space of one VM as host memory. Devices
// access the memory with bounds checks. The memory can be mapped copy-on-write over snapshot
// layers, and the package can list the pages that were written.
//
// It does not call KVM, because package machine registers the regions as memslots. It knows no
// snapshot format: it only maps files at offsets. Guest memory is not part of the Go heap.
package guestmem

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/vm"
)

// GPA is a guest physical address.
type GPA uint64

// PageSize is the size, in bytes, of a small x86-64 page. Memory is mapped, copied on write and
// tracked as dirty in units of this size.
const PageSize = 4096

// Guest RAM lies below the 32-bit device hole and continues above 4 GiB.
const (
	HoleStart GPA = vm.HoleStart // first address of the device hole
	HoleEnd   GPA = vm.HoleEnd   // first address above the hole
)

// ErrBounds reports an access that is not completely inside one region.
var ErrBounds = errors.New("guest address out of bounds")

// Region is a contiguous range of guest RAM with its host memory.
type Region struct {
	GPA  GPA
	Size uint64
	host []byte
}

// HVA returns the host virtual address of the region's first byte.
func (r *Region) HVA() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(r.host))) }

// Memory is the RAM of one VM. Its regions never move. Map may replace their content while the
// vCPUs are stopped and the devices quiesced. The access methods may be called concurrently. Only
// LoadUint16 and StoreUint16 order accesses.
type Memory struct {
	regions     []Region
	beforeWrite atomic.Pointer[func(gpa GPA, n int)] // nil until SetFreezer
}

// SetFreezer sets the function f. Every later WriteView, WriteAt or StoreUint16 calls f before it
// writes, so that f can save the old bytes. Devices may run during SetFreezer. A write that began
// before SetFreezer does not call f. This does no harm: f has something to save only after the
// devices have been quiesced, and a quiesced device holds no view.
func (m *Memory) SetFreezer(f func(gpa GPA, n int)) { m.beforeWrite.Store(&f) }

// HVA returns the host virtual address of gpa.
func (m *Memory) HVA(gpa GPA) (uintptr, error) {
	v, err := m.view(gpa, 1)
	if err != nil {
		return 0, err
	}
	return uintptr(unsafe.Pointer(unsafe.SliceData(v))), nil
}

// New reserves guest RAM of size bytes, with a gap for the device hole. The RAM contains zeros. A
// page is allocated when it is first written.
func New(size uint64) (*Memory, error) {
	if size == 0 || size%PageSize != 0 {
		return nil, fmt.Errorf("guest memory size %d: want a positive multiple of %d", size, PageSize)
	}
	m := &Memory{}
	low := min(size, uint64(HoleStart))
	if err := m.add(0, low); err != nil {
		return nil, err
	}
	if size > low {
		if err := m.add(HoleEnd, size-low); err != nil {
			m.Close()
			return nil, err
		}
	}
	return m, nil
}

func (m *Memory) add(gpa GPA, size uint64) error {
	host, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("map %d bytes of guest memory: %w", size, err)
	}
	if err := smallPages(host); err != nil {
		return errors.Join(err, unix.Munmap(host))
	}
	m.regions = append(m.regions, Region{GPA: gpa, Size: size, host: host})
	return nil
}

// Close unmaps the memory. Views of it must not be used afterwards.
func (m *Memory) Close() error {
	var errs []error
	for _, r := range m.regions {
		errs = append(errs, unix.Munmap(r.host))
	}
	m.regions = nil
	return errors.Join(errs...)
}

// Regions returns the regions in ascending order of address. The caller must not change the slice.
func (m *Memory) Regions() []Region { return m.regions }

// Size returns the number of bytes of RAM in all regions.
func (m *Memory) Size() uint64 {
	var n uint64
	for _, r := range m.regions {
		n += r.Size
	}
	return n
}

// view returns the n bytes at gpa. They must be in one region.
func (m *Memory) view(gpa GPA, n int) ([]byte, error) {
	if n < 0 {
		return nil, ErrBounds
	}
	for i := range m.regions {
		r := &m.regions[i]
		off := uint64(gpa - r.GPA) // if gpa is below the region, the subtraction wraps to a huge offset
		if gpa >= r.GPA && off <= r.Size && uint64(n) <= r.Size-off {
			return r.host[off : off+uint64(n) : off+uint64(n)], nil
		}
	}
	return nil, fmt.Errorf("%w: %d bytes at %#x", ErrBounds, n, uint64(gpa))
}

// ReadView returns the n bytes at gpa, without copying, for reading only. The guest may change
// these bytes at any moment, so a caller that checks bytes before it uses them must copy them
// first.
func (m *Memory) ReadView(gpa GPA, n int) ([]byte, error) { return m.view(gpa, n) }

// WriteView returns the n bytes at gpa, without copying. A device or a system call may write to
// them. A caller must not keep the view after the end of its request, because a branch may freeze
// the memory once the device is quiescent.
func (m *Memory) WriteView(gpa GPA, n int) ([]byte, error) {
	v, err := m.view(gpa, n)
	if f := m.beforeWrite.Load(); err == nil && f != nil && n > 0 {
		(*f)(gpa, n)
	}
	return v, err
}

// ReadAt copies len(p) bytes from gpa.
func (m *Memory) ReadAt(p []byte, gpa GPA) error {
	v, err := m.ReadView(gpa, len(p))
	if err != nil {
		return err
	}
	copy(p, v)
	return nil
}

// WriteAt copies p to gpa.
func (m *Memory) WriteAt(p []byte, gpa GPA) error {
	v, err := m.WriteView(gpa, len(p))
	if err != nil {
		return err
	}
	copy(v, p)
	return nil
}
