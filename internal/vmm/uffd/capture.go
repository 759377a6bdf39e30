package uffd

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// copyPages is how many pages the copier claims at a time: few enough that a writer of the last of
// them does not wait long, enough that one system call moves a worthwhile amount.
const copyPages = 64

// bitmap has one bit for each page of the linear memory.
type bitmap []atomic.Uint64

func newBitmap(pages uint64) bitmap { return make(bitmap, (pages+63)/64) }

func (b bitmap) get(i uint64) bool { return b[i/64].Load()>>(i%64)&1 != 0 }

// set sets bit i and reports whether it was clear.
func (b bitmap) set(i uint64) bool { return b[i/64].Or(1<<(i%64))>>(i%64)&1 == 0 }

// setRange sets n bits from first on, a word at a time: Freeze does it for every dirty page while
// the guest stands still.
func (b bitmap) setRange(first, n uint64) {
	for end := first + n; first < end; {
		count := min(end-first, 64-first%64)
		b[first/64].Or(^uint64(0) >> (64 - count) << (first % 64))
		first += count
	}
}

// Capture is one freeze being copied.
type Capture struct {
	f      *Freezer
	ranges []guestmem.Range
	layer  int

	frozenPages   bitmap // fixed by Freeze
	claimed       bitmap
	captured      bitmap
	faults        atomic.Uint64
	capturedCount atomic.Uint64
	total         uint64
	failed        atomic.Pointer[error]
}

func newCapture(f *Freezer, ranges []guestmem.Range, layer int) *Capture {
	pages := f.mem.Size() / guestmem.PageSize
	c := &Capture{f: f, ranges: ranges, layer: layer,
		frozenPages: newBitmap(pages), claimed: newBitmap(pages), captured: newBitmap(pages)}
	for _, r := range ranges {
		c.frozenPages.setRange(guestmem.Linear(r.GPA)/guestmem.PageSize, r.Length/guestmem.PageSize)
		c.total += r.Length / guestmem.PageSize
	}
	return c
}

func (c *Capture) frozen(i uint64) bool { return c.frozenPages.get(i) }
func (c *Capture) done(i uint64) bool   { return c.captured.get(i) }

// claim reports whether page i is frozen and now the caller's to capture.
func (c *Capture) claim(i uint64) bool { return c.frozen(i) && c.claimed.set(i) }

// capture writes claimed pages to the layer, makes them writable, and only then marks them
// captured. Protection may not be dropped before the bytes are in the layer, or the guest
// overwrites them first; and a page may not count as captured while it is protected, or a device
// that waited for the mark faults. After an error the pages are writable all the same, and the
// capture has failed.
func (c *Capture) capture(gpa guestmem.GPA, pages int) {
	err := c.write(gpa, pages)
	hva, herr := c.f.mem.HVA(gpa)
	if herr == nil {
		herr = c.f.uffd.writeProtect(hva, uint64(pages)*guestmem.PageSize, false)
	}
	if err = errors.Join(err, herr); err != nil {
		c.failed.CompareAndSwap(nil, &err)
	}
	c.captured.setRange(guestmem.Linear(gpa)/guestmem.PageSize, uint64(pages))
	c.capturedCount.Add(uint64(pages))
}

func (c *Capture) write(gpa guestmem.GPA, pages int) error {
	view, err := c.f.mem.ReadView(gpa, pages*guestmem.PageSize)
	off := int64(guestmem.Linear(gpa))
	for err == nil && len(view) > 0 {
		var n int
		n, err = unix.Pwrite(c.layer, view, off)
		if err == unix.EINTR {
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

// Copy captures what nobody else has captured, until all of the freeze is in the layer, and ends
// it. stop is asked now and then; when it reports true the rest is captured by the caller's next
// call of Copy (a machine that dirties pages faster than they are copied is paused first). It
// returns whether the freeze is complete.
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
	c.f.current.CompareAndSwap(c, nil)
	if err := c.failed.Load(); err != nil {
		return true, *err
	}
	return true, nil
}

// copySome captures the next run of unclaimed pages and returns where to go on.
func (c *Capture) copySome(at, end guestmem.GPA) guestmem.GPA {
	for at < end && !c.claim(guestmem.Linear(at)/guestmem.PageSize) {
		at += guestmem.PageSize
	}
	if at == end {
		return end
	}
	pages := 1
	for next := at + guestmem.PageSize; pages < copyPages && next < end; next += guestmem.PageSize {
		if !c.claim(guestmem.Linear(next) / guestmem.PageSize) {
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

func (c *Capture) unprotect(ranges []guestmem.Range) error {
	var errs []error
	for _, r := range ranges {
		hva, err := c.f.mem.HVA(r.GPA)
		errs = append(errs, err, c.f.uffd.writeProtect(hva, r.Length, false))
	}
	return errors.Join(errs...)
}
