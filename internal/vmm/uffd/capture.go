package uffd

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// copyPages is how many pages the copier claims at a time: few enough that a writer of the last of
// them does not wait long, enough that one system call moves a worthwhile amount.
const copyPages = 64

// Capture is one freeze: the pages of an instant, which are copied to a layer, and of which it is
// known whether they still equal it. Freezer has the states of a page.
type Capture struct {
	f      *Freezer
	ranges []guestmem.Range
	layer  int
	total  uint64 // frozen pages

	frozenPages bitmap // fixed by Freeze
	claimed     bitmap
	captured    bitmap
	released    bitmap
	open        bitmap

	faults        atomic.Uint64 // pages that were captured because a vCPU wrote them
	refaults      atomic.Uint64 // writes of vCPUs to pages that had been captured
	capturedCount atomic.Uint64
	openCount     atomic.Uint64
	failed        atomic.Pointer[error]
}

func newCapture(f *Freezer, ranges []guestmem.Range, layer int) *Capture {
	pages := f.mem.Size() / guestmem.PageSize
	c := &Capture{f: f, ranges: ranges, layer: layer, frozenPages: newBitmap(pages),
		claimed: newBitmap(pages), captured: newBitmap(pages), released: newBitmap(pages), open: newBitmap(pages)}
	for _, r := range ranges {
		c.frozenPages.setRange(pageOf(r.GPA), r.Length/guestmem.PageSize)
		c.total += r.Length / guestmem.PageSize
	}
	return c
}

// pageOf returns the number of the page at gpa.
func pageOf(gpa guestmem.GPA) uint64 { return guestmem.Linear(gpa) / guestmem.PageSize }

func (c *Capture) frozen(i uint64) bool { return c.frozenPages.get(i) }

// claim reports whether page i is frozen and now the caller's to capture.
func (c *Capture) claim(i uint64) bool { return c.frozen(i) && c.claimed.set(i) }

// release reports whether page i is captured, still protected, and now the caller's to open.
func (c *Capture) release(i uint64) bool { return c.captured.get(i) && c.released.set(i) }

// fail notes the first error. The layer is of no use after it.
func (c *Capture) fail(err error) {
	if err != nil {
		c.failed.CompareAndSwap(nil, &err)
	}
}

// capture writes claimed pages to the layer. They stay protected. After an error they count as
// captured all the same, so that nobody waits for them.
func (c *Capture) capture(gpa guestmem.GPA, pages int) {
	c.fail(c.write(gpa, pages))
	c.captured.setRange(pageOf(gpa), uint64(pages))
	c.capturedCount.Add(uint64(pages))
}

func (c *Capture) write(gpa guestmem.GPA, pages int) error {
	view, err := c.f.mem.ReadView(gpa, pages*guestmem.PageSize)
	off := int64(guestmem.Linear(gpa))
	for err == nil && len(view) > 0 {
		var n int
		n, err = unix.Pwrite(c.layer, view, off)
		if errors.Is(err, unix.EINTR) {
			err = nil
			continue
		}
		view, off = view[max(n, 0):], off+int64(max(n, 0))
		if err == nil && n == 0 {
			err = unix.ENOSPC
		}
	}
	if err != nil {
		return fmt.Errorf("write memory layer: %w", err)
	}
	return nil
}

// unprotect makes released pages writable and wakes their writers.
func (c *Capture) unprotect(gpa guestmem.GPA, pages uint64) {
	hva, err := c.f.mem.HVA(gpa)
	if err == nil {
		err = c.f.uffd.writeProtect(hva, pages*guestmem.PageSize, false)
	}
	c.fail(err)
	c.opened(gpa, pages)
}

// opened marks pages that can be written from now on.
func (c *Capture) opened(gpa guestmem.GPA, pages uint64) {
	c.open.setRange(pageOf(gpa), pages)
	c.openCount.Add(pages)
}

// letWrite makes the frozen page at gpa writable, and up to around-1 captured ones behind it. A
// page that is not in the layer yet is captured first. wait is called again and again while
// somebody else has the page. It reports whether the page was captured here, and whether it was
// opened here.
func (c *Capture) letWrite(gpa guestmem.GPA, around uint64, wait func()) (captured, opened bool) {
	i := pageOf(gpa)
	if captured = c.claim(i); captured {
		c.capture(gpa, 1)
	}
	for !c.captured.get(i) {
		wait() // another thread is inside pwrite with it
	}
	if !c.release(i) {
		for !c.open.get(i) {
			wait() // another thread is about to open or to replace it
		}
		return captured, false
	}
	n := uint64(1)
	for last := c.f.rest(gpa); n < min(around, last) && c.release(i+n); {
		n++
	}
	c.unprotect(gpa, n)
	return captured, true
}

// openRun makes the frozen page at gpa writable for a device, and pages behind it, at most most in
// all, which lie in one region. It returns how many they are. Those that are not in the layer yet are
// written to it in one piece, which costs far less than page by page.
func (c *Capture) openRun(gpa guestmem.GPA, most uint64) uint64 {
	first, pages := pageOf(gpa), uint64(0)
	for pages < most && c.claim(first+pages) {
		pages++
	}
	if pages == 0 { // somebody else has claimed it
		c.letWrite(gpa, most, runtime.Gosched)
		return 1
	}
	c.capture(gpa, int(pages))
	for at := uint64(0); at < pages; at++ {
		page := gpa + guestmem.GPA(at*guestmem.PageSize)
		if !c.open.get(first + at) { // the next ones are opened with it
			c.letWrite(page, pages-at, runtime.Gosched)
		}
	}
	return pages
}

// Copy captures what nobody else has captured, until all of the freeze is in the layer. stop is
// asked now and then; when it reports true the rest is captured by the caller's next call of Copy
// (a machine that dirties pages faster than they are copied is paused first). It returns whether
// all is captured. What nobody has written stays protected until Release, but after an error.
func (c *Capture) Copy(stop func() bool) (complete bool, err error) {
	for _, r := range c.ranges {
		for at := r.GPA; at < r.GPA+guestmem.GPA(r.Length); {
			if stop() {
				return false, nil
			}
			at = c.copySome(at, r.GPA+guestmem.GPA(r.Length))
		}
	}
	for c.capturedCount.Load() < c.total {
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 50_000}, nil) // others are inside pwrite with the last pages
	}
	if err := c.failed.Load(); err != nil {
		_ = c.Release() // returns that error
		return true, *err
	}
	return true, nil
}

// copySome captures the next run of unclaimed pages and returns where to go on.
func (c *Capture) copySome(at, end guestmem.GPA) guestmem.GPA {
	for at < end && !c.claim(pageOf(at)) {
		at += guestmem.PageSize
	}
	if at == end {
		return end
	}
	pages := 1
	for next := at + guestmem.PageSize; pages < copyPages && next < end; next += guestmem.PageSize {
		if !c.claim(pageOf(next)) {
			break
		}
		pages++
	}
	c.capture(at, pages)
	return at + guestmem.GPA(pages)*guestmem.PageSize
}

// Progress returns how many pages were frozen, are captured, and were captured because a vCPU wrote
// them.
func (c *Capture) Progress() (total, captured, faults uint64) {
	return c.total, c.capturedCount.Load(), c.faults.Load()
}
