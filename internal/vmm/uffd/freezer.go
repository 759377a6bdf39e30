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

// Freezer freezes pages of one guest memory. It can be used repeatedly.
//
// During a freeze, each frozen page goes through these states:
//
//	pending ──claim──▶ claimed ──bytes written to the layer──▶ captured ──release──▶ released ──▶ open
//
// The thread that claims a page also writes the page to the layer, after which the page is
// captured. The copier, and devices that want to write, claim many pages at a time. The fault
// handler claims single pages. A captured page stays write-protected, and equal to the layer, until
// one of three actions opens it: a thread that wants to write drops the page's protection, Replace
// maps the layer in place of the page, or Release opens all remaining pages. Only one thread can
// claim a page, and only one thread can release it. Threads that want to write the page wait until
// it is open.
type Freezer struct {
	uffd fd
	mem  *guestmem.Memory

	mu      sync.Mutex              // held while a freeze starts, and while no freeze may start
	current atomic.Pointer[Capture] // cleared by Capture.Release
	failed  atomic.Pointer[error]   // error of the fault handler; if set, nothing can be frozen
}

// NewFreezer returns a Freezer for the memory mem. It uses an open /dev/userfaultfd (device), which
// the caller keeps. Call Register before each Freeze.
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

// Register registers the whole memory with the kernel. It must be called again after Memory.Map,
// Memory.Clear and Capture.Replace, because these make mappings that the kernel has not registered.
// If memory is mapped from a file, Register fails on most file systems.
func (f *Freezer) Register() error {
	regions := f.mem.Regions()
	for i := range regions {
		if err := f.uffd.register(regions[i].HVA(), regions[i].Size); err != nil {
			return err
		}
	}
	return nil
}

// serveFaults captures the pages that vCPUs want to write. It runs on its own thread. Code that
// waits for serveFaults must not hold a processor of the Go scheduler, because serveFaults may need
// that processor. vCPUs hold no processor, because they fault inside KVM_RUN, which is a system
// call. Devices do not fault, because they call beforeWrite first.
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
			continue // cannot happen, because the kernel reports only registered pages
		}
		if err := f.serveFault(page, gpa); err != nil {
			f.failed.Store(&err)
		}
	}
}

// The first write to a captured page causes a fault. After manyFaults such faults, each further
// fault makes up to aroundPages captured pages writable. So a guest that writes many captured pages
// is not slowed down much, but a rebase can replace fewer pages.
const (
	manyFaults  = 512
	aroundPages = 64
)

// serveFault makes a page writable for a thread that waits to write it. The fault may belong to an
// earlier freeze, which has ended in the meantime.
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
	// Another thread has opened the page and woken the waiters, perhaps before this page's writer
	// began to wait. So wake the waiters again.
	return f.uffd.wake(page, guestmem.PageSize)
}

// thaw drops the protection of a page that belongs to no freeze. It holds mu, so that no freeze
// starts in the meantime. If one started, the old content of a newly frozen page would be lost.
func (f *Freezer) thaw(page uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current.Load() == nil {
		err := f.uffd.writeProtect(page, guestmem.PageSize, false)
		if !errors.Is(err, unix.ENOENT) { // ENOENT: the mapping has been replaced
			return err
		}
	}
	return f.uffd.wake(page, guestmem.PageSize) // if the page is frozen by now, the writer faults again
}

// gpa converts an address in this process to a guest address. It returns false if the address is
// not guest memory.
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
// write them. A device must not fault instead: a Go thread that faults holds a processor of the Go
// scheduler, and the fault handler may need that processor.
//
// If a page cannot be captured, the branch fails, but the page becomes writable, so that the device
// continues.
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

// Freeze write-protects the given ranges, so that they keep their content until the content is in
// the layer file, whose descriptor the caller passes. Page i of the linear memory is written at
// offset i*PageSize. The ranges must consist of whole pages, in ascending order. The caller must
// then call Capture.Copy, and after that Capture.Release.
//
// Preconditions: the vCPUs are stopped and the devices quiesced until Freeze returns.
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
			return nil, errors.Join(err, f.unfreeze(ranges[:i+1])) // a part of the last range may also be protected
		}
	}
	f.current.Store(c)
	return c, nil
}
