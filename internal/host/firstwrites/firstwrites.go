// Package firstwrites learns which pages every child of a snapshot writes as soon as it runs. A VMM
// that knows these pages can copy them all for a new child before the child runs.
//
// The package does not ask VMMs itself: its callers do.
package firstwrites

import (
	"sync"

	"github.com/forkd/forkd/internal/proto/vm"
)

// learners is how many children must report the pages that they have written. The report of one
// child is not enough: while the host reads pages of the first child from disk, that child stays
// awake so long that its kernel may start another worker thread. The child then writes forty pages
// more than its siblings.
const learners = 3

// maxAsked is the maximum number of children that are asked for their pages. It is larger than the
// constant learners, because a child that is asked may be killed when its fork is cancelled.
const maxAsked = 3 * learners

// Set is the set of pages that every child of a snapshot writes as soon as it runs. The zero value knows none.
type Set struct {
	mu sync.Mutex
	// +checklocks:mu
	asked int // number of children that have been asked
	// +checklocks:mu
	asking int // number of children that may still answer
	// +checklocks:mu
	told int // number of children that have answered
	// +checklocks:mu
	common []vm.Range // pages that all answering children have written; valid when told equals learners
}

// Pages returns the pages. It returns nil while they are unknown. The caller must not change the
// result.
func (f *Set) Pages() []vm.Range {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.told < learners {
		return nil
	}
	return f.common
}

// Learn asks a child for the pages that the child has written. If no more children are needed,
// Learn does nothing. If too few children answer, the pages stay unknown.
func (f *Set) Learn(ask func() ([]vm.Range, error)) {
	if !f.begin() {
		return
	}
	ranges, err := ask()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asking--
	if err != nil {
		return
	}
	if f.told > 0 {
		ranges = intersect(f.common, ranges)
	}
	f.common = ranges
	f.told++
}

// begin counts another child that is asked. It returns false if no more children are needed.
func (f *Set) begin() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.asking+f.told == learners || f.asked == maxAsked {
		return false
	}
	f.asked++
	f.asking++
	return true
}

// intersect returns the intersection of two ascending lists of ranges.
func intersect(a, b []vm.Range) (both []vm.Range) {
	for len(a) > 0 && len(b) > 0 {
		start := max(a[0].GPA, b[0].GPA)
		endA, endB := a[0].GPA+a[0].Length, b[0].GPA+b[0].Length
		if end := min(endA, endB); start < end {
			both = append(both, vm.Range{GPA: start, Length: end - start})
		}
		if endA < endB {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return both
}
