package uffd

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// replacePages is the maximum number of pages that are replaced at a time. While the kernel frees
// the old pages, faults in these pages wait, and a device that wants to write one of them also
// waits. For 4 MiB, the wait is well under a millisecond.
const replacePages = 1024

// Unchanged returns the frozen ranges that have not been written since the freeze, in ascending
// order. All pages must be captured. The unchanged ranges may shrink at any moment, because the
// machine may write to them.
func (c *Capture) Unchanged() []guestmem.Range {
	var out []guestmem.Range
	for _, r := range c.ranges {
		first, n := pageOf(r.GPA), r.Length/guestmem.PageSize
		for at := uint64(0); at < n; {
			from := at
			for at < n && !c.released.get(first+at) {
				at++
			}
			if at > from {
				gpa := r.GPA + guestmem.GPA(from*guestmem.PageSize)
				out = append(out, guestmem.Range{GPA: gpa, Length: (at - from) * guestmem.PageSize})
			}
			at++
		}
	}
	return out
}

// Replace maps a layer over the pages of r that are still unchanged. The range r is one of the
// ranges of Unchanged, and the layer has the pages at their linear offsets. The mapping is private.
// The caller limits the number of ranges (most). Replace returns the replaced ranges in ascending
// order. The machine may run: each page stays write-protected until its mapping is replaced. Then
// threads that wait to write the page wake, and write to a private copy of the layer's page.
func (c *Capture) Replace(r guestmem.Range, layer, most int) (done []guestmem.Range, err error) {
	end := r.GPA + guestmem.GPA(r.Length)
	for at := r.GPA; at < end; {
		joins := len(done) > 0 && done[len(done)-1].GPA+guestmem.GPA(done[len(done)-1].Length) == at
		if !joins && len(done) == most {
			break
		}
		if !c.release(pageOf(at)) {
			at += guestmem.PageSize
			continue
		}
		pages := uint64(1)
		for next := at + guestmem.PageSize; pages < replacePages && next < end &&
			c.release(pageOf(next)); next += guestmem.PageSize {
			pages++
		}
		run := guestmem.Range{GPA: at, Length: pages * guestmem.PageSize}
		if err = c.replace(run, layer); err != nil {
			break
		}
		if joins {
			done[len(done)-1].Length += run.Length
		} else {
			done = append(done, run)
		}
		at += guestmem.GPA(run.Length)
	}
	return done, err
}

// replace replaces pages that the caller has released.
func (c *Capture) replace(r guestmem.Range, layer int) error {
	if err := c.f.mem.Map(r.GPA, r.Length, layer, guestmem.Linear(r.GPA)); err != nil {
		c.unprotect(r.GPA, r.Length/guestmem.PageSize) // the pages keep their mapping, with the same content
		return err
	}
	hva, err := c.f.mem.HVA(r.GPA)
	if err == nil {
		err = c.f.uffd.wake(hva, r.Length)
	}
	c.opened(r.GPA, r.Length/guestmem.PageSize)
	return err
}

// Release makes all remaining protected pages writable, and ends the freeze. From then on, the
// freezer no longer knows which pages are unchanged. Before Release, all pages must have been
// captured. Calling Release again does nothing.
func (c *Capture) Release() error {
	for _, r := range c.Unchanged() {
		c.openRange(r)
	}
	for c.openCount.Load() < c.total {
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 50_000}, nil) // other threads are opening the last pages
	}
	c.f.current.CompareAndSwap(c, nil)
	if err := c.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// openRange opens the pages of r that no thread has released.
func (c *Capture) openRange(r guestmem.Range) {
	end := r.GPA + guestmem.GPA(r.Length)
	for at := r.GPA; at < end; {
		if !c.release(pageOf(at)) {
			at += guestmem.PageSize
			continue
		}
		pages := uint64(1)
		for next := at + guestmem.PageSize; next < end && c.release(pageOf(next)); next += guestmem.PageSize {
			pages++
		}
		c.unprotect(at, pages)
		at += guestmem.GPA(pages * guestmem.PageSize)
	}
}

// unfreeze drops the protection of the given ranges after Freeze has failed.
func (f *Freezer) unfreeze(ranges []guestmem.Range) error {
	var errs []error
	for _, r := range ranges {
		hva, err := f.mem.HVA(r.GPA)
		errs = append(errs, err, f.uffd.writeProtect(hva, r.Length, false))
	}
	return errors.Join(errs...)
}
