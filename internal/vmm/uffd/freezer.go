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

// Freezer can freeze the pages of one guest memory, again and again.
//
// A frozen page goes through these states, each page once per freeze:
//
//	pending ──claim──▶ claimed ──bytes written to the layer──▶ captured ──release──▶ released ──▶ open
//
// Whoever claims a page captures it: the copier (many at a time), the fault handler, or a device
// about to write. A captured page stays protected, and equals the layer, until somebody writes it.
// Whoever releases a page opens it: a writer drops its protection, Replace puts a mapping of the
// layer in its place, Release opens all that is left. Nobody touches a page that another has
// claimed or released; a writer of one waits until it is open.
type Freezer struct {
	uffd fd
	mem  *guestmem.Memory

	mu      sync.Mutex              // held to set current, and while nothing may begin to be frozen
	current atomic.Pointer[Capture] // its Release clears it
	failed  atomic.Pointer[error]   // of the fault handler; nothing can be frozen any more
}

// NewFreezer prepares mem for freezing. device is an open /dev/userfaultfd; it stays the caller's.
// Register is to be called before each Freeze.
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

// Register covers the whole memory: mappings that Memory.Map, Memory.Clear and Capture.Replace have
// made are new to the kernel. Over files of most file systems it fails.
func (f *Freezer) Register() error {
	regions := f.mem.Regions()
	for i := range regions {
		if err := f.uffd.register(regions[i].HVA(), regions[i].Size); err != nil {
			return err
		}
	}
	return nil
}

// serveFaults captures the pages that vCPUs want to write. It has a thread of its own, and no Go
// code can wait for it while holding the scheduler: vCPUs fault inside KVM_RUN, which is a system
// call, and devices ask beforeWrite first.
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
			continue // the kernel reports what is registered only
		}
		if err := f.serveFault(page, gpa); err != nil {
			f.failed.Store(&err)
		}
	}
}

// A guest that writes much of what has been captured meets a fault for each page. After manyFaults
// of them it gets aroundPages at a time: fewer pages can be replaced then, and it is hardly slower.
const (
	manyFaults  = 512
	aroundPages = 64
)

// serveFault makes a page writable whose writer waits. The fault may be of an earlier freeze, which
// has ended since it was read.
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
	// Somebody else had the page, maybe before this writer began to wait: the wake-up that came
	// with opening it may have been too early for it.
	return f.uffd.wake(page, guestmem.PageSize)
}

// thaw drops the protection of a page that no freeze needs. mu keeps a freeze from beginning
// meanwhile, which would lose the page.
func (f *Freezer) thaw(page uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current.Load() == nil {
		err := f.uffd.writeProtect(page, guestmem.PageSize, false)
		if !errors.Is(err, unix.ENOENT) { // its mapping has been replaced
			return err
		}
	}
	return f.uffd.wake(page, guestmem.PageSize) // the writer faults again, if the page is frozen now
}

// gpa translates a host address.
func (f *Freezer) gpa(page uintptr) (guestmem.GPA, bool) {
	regions := f.mem.Regions()
	for i := range regions {
		if r := &regions[i]; page >= r.HVA() && uint64(page-r.HVA()) < r.Size {
			return r.GPA + guestmem.GPA(page-r.HVA()), true
		}
	}
	return 0, false
}

// rest returns how many pages there are from gpa, a page, to the end of its region.
func (f *Freezer) rest(gpa guestmem.GPA) uint64 {
	regions := f.mem.Regions()
	for i := range regions {
		if r := &regions[i]; gpa >= r.GPA && uint64(gpa-r.GPA) < r.Size {
			return (r.Size - uint64(gpa-r.GPA)) / guestmem.PageSize
		}
	}
	return 0
}

// beforeWrite makes what is frozen of the n bytes at gpa writable, because a device is about to
// write them. Devices must not fault: a Go thread that does holds its scheduler slot while the
// handler may need one.
//
// A capture that fails is the branch's misfortune and not the device's: the page is writable all
// the same.
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

// Freeze protects ranges, whole pages in ascending order, so that they keep their bytes for the
// layer file: page i of the linear memory goes to offset i*PageSize. Capture.Copy must follow, and
// then Capture.Release.
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
			return nil, errors.Join(err, f.unfreeze(ranges[:i+1])) // the last one may be protected in part
		}
	}
	f.current.Store(c)
	return c, nil
}
