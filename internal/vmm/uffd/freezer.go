package uffd

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// Freezer freezes the pages of one guest memory, repeatedly.
//
// Each frozen page goes through these states once per freeze:
//
//	pending ──claim──▶ claimed ──bytes written to the layer──▶ captured ──release──▶ released ──▶ open
//
// The thread that claims a page captures it: the copier (many at a time), the fault handler, or a
// device about to write. A captured page stays protected, and equal to the layer, until it is
// written. The thread that releases a page opens it: a writer drops its protection, Replace maps
// the layer in its place, and Release opens all remaining pages. No thread touches a page that
// another thread has claimed or released; threads that want to write it wait until it is open.
type Freezer struct {
	uffd fd
	mem  *guestmem.Memory

	mu      sync.Mutex              // held to set current, and to prevent a freeze from starting
	current atomic.Pointer[Capture] // cleared by Capture.Release
	failed  atomic.Pointer[error]   // error of the fault handler; after it nothing can be frozen
}

// NewFreezer prepares mem for freezing. device is an open /dev/userfaultfd, which still belongs to
// the caller. Call Register before each Freeze.
func NewFreezer(device int, mem *guestmem.Memory) (*Freezer, error) {
	u, err := open(device)
	if err != nil {
		return nil, err
	}
	f := &Freezer{uffd: u, mem: mem}
	mem.SetFreezer(f.beforeWrite)
	go f.serveFaults()
	return f, nil
}

// Register registers the whole memory, because the kernel does not know the mappings that
// Memory.Map, Memory.Clear and Capture.Replace have made. It fails for files of most file systems.
func (f *Freezer) Register() error {
	regions := f.mem.Regions()
	for i := range regions {
		if err := f.uffd.register(regions[i].HVA(), regions[i].Size); err != nil {
			return err
		}
	}
	return nil
}

// serveFaults captures the pages that vCPUs want to write. It has its own thread. No Go code waits
// for it while holding a processor of the Go scheduler: vCPUs fault inside KVM_RUN, which is a
// system call, and devices call beforeWrite first.
func (f *Freezer) serveFaults() {
	runtime.LockOSThread()
	for {
		addr, err := f.uffd.nextFault()
		if err != nil {
			f.failed.Store(&err)
			return
		}
		page := addr &^ (guestmem.PageSize - 1)
		gpa, ok := f.gpa(page)
		if !ok {
			continue // the kernel reports only registered pages
		}
		if err := f.serveFault(page, gpa); err != nil {
			f.failed.Store(&err)
		}
	}
}

// A guest that writes many captured pages causes a fault for each. After manyFaults faults, each
// further fault opens aroundPages pages. The guest is then hardly slowed down, but fewer pages can
// be replaced.
const (
	manyFaults  = 512
	aroundPages = 64
)

// serveFault makes a page that a thread waits to write writable. The fault may belong to an earlier
// freeze, which has ended since the fault was read.
func (f *Freezer) serveFault(page uintptr, gpa guestmem.GPA) error {
	c := f.current.Load()
	if c == nil {
		return f.thaw(page)
	}
	if !c.frozen(pageOf(gpa)) {
		return f.uffd.wake(page, guestmem.PageSize)
	}
	around := uint64(1)
	if c.refaults.Load() > manyFaults {
		around = aroundPages
	}
	captured, opened := c.letWrite(gpa, around, func() { _ = unix.Nanosleep(&unix.Timespec{Nsec: 20_000}, nil) })
	if captured {
		c.faults.Add(1)
	} else {
		c.refaults.Add(1)
	}
	if opened {
		return nil
	}
	// Another thread has opened the page, perhaps before this writer began to wait. Then that
	// thread's wake-up came too early.
	return f.uffd.wake(page, guestmem.PageSize)
}

// thaw drops the protection of a page that belongs to no freeze. It holds mu so that no freeze
// starts, because the new freeze would lose the page.
func (f *Freezer) thaw(page uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current.Load() == nil {
		err := f.uffd.writeProtect(page, guestmem.PageSize, false)
		if !errors.Is(err, unix.ENOENT) { // ENOENT: the page's mapping has been replaced
			return err
		}
	}
	return f.uffd.wake(page, guestmem.PageSize) // the writer faults again if the page is frozen now
}

// gpa converts a host address to a guest address.
func (f *Freezer) gpa(page uintptr) (guestmem.GPA, bool) {
	regions := f.mem.Regions()
	for i := range regions {
		if r := &regions[i]; page >= r.HVA() && uint64(page-r.HVA()) < r.Size {
			return r.GPA + guestmem.GPA(page-r.HVA()), true
		}
	}
	return 0, false
}

// rest returns the number of pages from gpa to the end of its region.
func (f *Freezer) rest(gpa guestmem.GPA) uint64 {
	regions := f.mem.Regions()
	for i := range regions {
		if r := &regions[i]; gpa >= r.GPA && uint64(gpa-r.GPA) < r.Size {
			return (r.Size - uint64(gpa-r.GPA)) / guestmem.PageSize
		}
	}
	return 0
}

// beforeWrite makes the frozen pages of the n bytes at gpa writable, because a device is about to
// write them. Devices must not fault: a Go thread that faults holds its scheduler slot while the
// handler may need one.
//
// If a capture fails, the branch fails but the device does not: the page is writable nevertheless.
func (f *Freezer) beforeWrite(gpa guestmem.GPA, n int) {
	c := f.current.Load()
	if c == nil {
		return
	}
	for page, end := gpa&^(guestmem.PageSize-1), gpa+guestmem.GPA(n); page < end; {
		pages := uint64(1)
		if i := pageOf(page); c.frozen(i) && !c.open.get(i) {
			left := (uint64(end-page) + guestmem.PageSize - 1) / guestmem.PageSize
			pages = c.openRun(page, min(left, copyPages))
		}
		page += guestmem.GPA(pages * guestmem.PageSize)
	}
}

// Freeze protects ranges, so that they keep their bytes until these are in the layer file: page i
// of the linear memory goes to offset i*PageSize. The ranges are whole pages in ascending order.
// Capture.Copy must follow, and then Capture.Release.
//
// Preconditions: the vCPUs are stopped and the devices quiesced, now and until Freeze returns.
func (f *Freezer) Freeze(ranges []guestmem.Range, layer int) (*Capture, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.failed.Load(); err != nil {
		return nil, fmt.Errorf("freeze guest memory: the fault handler has failed: %w", *err)
	}
	if f.current.Load() != nil {
		return nil, errors.New("freeze guest memory: it is frozen already")
	}
	c := newCapture(f, ranges, layer)
	for i, r := range ranges {
		hva, err := f.mem.HVA(r.GPA)
		if err == nil {
			err = f.uffd.writeProtect(hva, r.Length, true)
		}
		if err != nil {
			return nil, errors.Join(err, f.unfreeze(ranges[:i+1])) // the last range may be protected in part
		}
	}
	f.current.Store(c)
	return c, nil
}
