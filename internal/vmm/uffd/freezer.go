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
//	pending ──claim──▶ claimed ──bytes written to the layer──▶ ──protection dropped──▶ captured
//
// Whoever claims a page captures it: the copier (many at a time), the fault handler, or a device
// about to write. Nobody touches a page that another has claimed; a writer of a claimed page waits
// until it is writable.
type Freezer struct {
	uffd fd
	mem  *guestmem.Memory

	mu      sync.Mutex              // held to set current, and while nothing may begin to be frozen
	current atomic.Pointer[Capture] // a Capture clears it when it is complete
	failed  atomic.Pointer[error]   // of the fault handler; nothing can be frozen any more
}

// NewFreezer prepares mem for freezing. device is an open /dev/userfaultfd; it stays the caller's.
// The mappings behind mem must not be replaced afterwards without Register.
func NewFreezer(device int, mem *guestmem.Memory) (*Freezer, error) {
	u, err := open(device)
	if err != nil {
		return nil, err
	}
	f := &Freezer{uffd: u, mem: mem}
	if err := f.Register(); err != nil {
		return nil, errors.Join(err, unix.Close(int(u)))
	}
	mem.SetFreezer(f.beforeWrite)
	go f.serveFaults()
	return f, nil
}

// Register covers the whole memory, also after Memory.Map or Memory.Clear has replaced a mapping.
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

// serveFault makes a page writable whose writer waits. The fault may be of an earlier freeze, which
// has ended since it was read.
func (f *Freezer) serveFault(page uintptr, gpa guestmem.GPA) error {
	c := f.current.Load()
	if c == nil {
		return f.thaw(page)
	}
	i := guestmem.Linear(gpa) / guestmem.PageSize
	if c.claim(i) {
		c.faults.Add(1)
		c.capture(gpa, 1)
		return nil
	}
	// Somebody else has the page, or had it before this writer began to wait: the wake-up that came
	// with dropping the protection may have been too early for it.
	for c.frozen(i) && !c.done(i) {
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 20_000}, nil)
	}
	return f.uffd.wake(page)
}

// thaw drops the protection of a page that no freeze needs. mu keeps a freeze from beginning
// meanwhile, which would lose the page.
func (f *Freezer) thaw(page uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current.Load() != nil {
		return f.uffd.wake(page) // the writer faults again, if the page is frozen now
	}
	return f.uffd.writeProtect(page, guestmem.PageSize, false)
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

// beforeWrite captures what is frozen of the n bytes at gpa, because a device is about to write
// them. Devices must not fault: a Go thread that does holds its scheduler slot while the handler
// may need one.
//
// A capture that fails is the branch's misfortune and not the device's: the page is writable all
// the same.
func (f *Freezer) beforeWrite(gpa guestmem.GPA, n int) {
	c := f.current.Load()
	if c == nil {
		return
	}
	first := guestmem.Linear(gpa) / guestmem.PageSize
	last := (guestmem.Linear(gpa) + uint64(n) - 1) / guestmem.PageSize
	for i := first; i <= last; i++ {
		if c.claim(i) {
			page := gpa&^(guestmem.PageSize-1) + guestmem.GPA(i-first)*guestmem.PageSize
			c.capture(page, 1)
			continue
		}
		for c.frozen(i) && !c.done(i) {
			runtime.Gosched() // another goroutine is inside pwrite with this page
		}
	}
}

// Freeze protects ranges, whole pages in ascending order, so that they keep their bytes for the
// layer file: page i of the linear memory goes to offset i*PageSize. Capture.Copy must follow.
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
			return nil, errors.Join(err, c.unprotect(ranges[:i+1])) // the last one may be protected in part
		}
	}
	f.current.Store(c)
	return c, nil
}
