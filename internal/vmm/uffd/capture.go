package uffd

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// copyPages is the number of pages that the copier claims and copies at a time. A larger number
// needs fewer system calls, but a thread that wants to write one of these pages waits longer.
const copyPages = 64

// Capture is one freeze. It copies the frozen pages, as they were at one instant, to a layer file.
// It also records which pages are still equal to the layer. The comment at Freezer describes the
// states of a page.
type Capture struct {
	f      *Freezer
	ranges []guestmem.Range
	layer  int
	total  uint64 // number of frozen pages

	frozenPages bitmap // pages that Freeze has frozen; never changes
	claimed     bitmap
	captured    bitmap
	released    bitmap
	open        bitmap

	faults        atomic.Uint64 // number of pages that were captured because a vCPU wanted to write them
	refaults      atomic.Uint64 // number of writes of vCPUs to pages that were already captured
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

// claim claims page i for the caller, which must then capture the page. It returns false if the
// page is not frozen or already claimed.
func (c *Capture) claim(i uint64) bool { return c.frozen(i) && c.claimed.set(i) }

// release marks page i as released by the caller, which must then open the page. It returns false
// if the page is not captured or already released.
func (c *Capture) release(i uint64) bool { return c.captured.get(i) && c.released.set(i) }

// fail stores the first error of the capture. After an error, the layer is useless.
func (c *Capture) fail(err error) {
	if err != nil {
		c.failed.CompareAndSwap(nil, &err)
	}
}

// capture writes to the layer the pages that the caller has claimed. The pages stay
// write-protected. Even after an error, capture marks the pages as captured, so that no thread
// waits for them.
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

// unprotect drops the write protection of the pages that the caller has released, and wakes the
// threads that wait to write them.
func (c *Capture) unprotect(gpa guestmem.GPA, pages uint64) {
	hva, err := c.f.mem.HVA(gpa)
	if err == nil {
		err = c.f.uffd.writeProtect(hva, pages*guestmem.PageSize, false)
	}
	c.fail(err)
	c.opened(gpa, pages)
}

// opened is called when pages have become writable, and marks the pages as open.
func (c *Capture) opened(gpa guestmem.GPA, pages uint64) {
	c.open.setRange(pageOf(gpa), pages)
	c.openCount.Add(pages)
}

// letWrite makes the frozen page at gpa writable, together with up to around-1 captured pages after
// it. If the page is not in the layer yet, letWrite captures it first. If another thread has
// claimed or released the page, letWrite calls wait() repeatedly until that thread is done.
// letWrite returns whether it has captured the page, and whether it has opened the page.
func (c *Capture) letWrite(gpa guestmem.GPA, around uint64, wait func()) (captured, opened bool) {
	i := pageOf(gpa)
	if captured = c.claim(i); captured {
		c.capture(gpa, 1)
	}
	for !c.captured.get(i) {
		wait() // another thread is writing the page to the layer
	}
	if !c.release(i) {
		for !c.open.get(i) {
			wait() // another thread is about to open or replace the page
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

// openRun makes the frozen page at gpa, and pages after it, writable for a device. The caller
// limits the number of pages (most). All these pages must be in one region. The result is the
// number of pages, from gpa on, that are open now. Pages after these may be open too. openRun uses
// only one system call to write the pages that the layer still lacks. This is much faster than one
// call for each page.
func (c *Capture) openRun(gpa guestmem.GPA, most uint64) uint64 {
	first, pages := pageOf(gpa), uint64(0)
	for pages < most && c.claim(first+pages) {
		pages++
	}
	if pages == 0 { // another thread has claimed the page
		c.letWrite(gpa, most, runtime.Gosched)
		return 1
	}
	c.capture(gpa, int(pages))
	for at := uint64(0); at < pages; at++ {
		page := gpa + guestmem.GPA(at*guestmem.PageSize)
		if !c.open.get(first + at) { // false if an earlier iteration has opened the page
			c.letWrite(page, pages-at, runtime.Gosched)
		}
	}
	return pages
}

// Copy captures all pages that other threads have not captured, until the layer is complete. It
// calls stop regularly. If stop returns true, Copy returns early, with false for complete, and the
// caller must call Copy again. Before the next call, the caller can pause a machine that writes to
// frozen pages faster than Copy captures them. Pages that are not written stay protected until
// Release, or until Copy returns an error.
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
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 50_000}, nil) // other threads are writing the last pages
	}
	if err := c.failed.Load(); err != nil {
		_ = c.Release() // Release returns the same error
		return true, *err
	}
	return true, nil
}

// copySome captures the next run of pages between at and end that no thread has claimed. It returns
// the address after that run.
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

// Progress returns three numbers of pages: all frozen pages, the captured pages, and the pages that
// were captured because a vCPU wanted to write them.
func (c *Capture) Progress() (total, captured, faults uint64) {
	return c.total, c.capturedCount.Load(), c.faults.Load()
}
