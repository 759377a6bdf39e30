package store

import (
	"sync"

	"github.com/forkd/forkd/internal/proto/vm"
)

// learners is how many children report the pages they have written. A single child may not be
// typical: while the host reads the first child's pages from disk, the child stays awake so long
// that its kernel may start another worker thread. Then it writes forty pages more than its
// siblings.
const learners = 3

// maxAsked bounds the number of children asked. More than learners may be needed, because a
// cancelled fork takes the children with it that are being asked.
const maxAsked = 3 * learners

// firstWrites learns the pages that every child of a snapshot writes as soon as it runs.
type firstWrites struct {
	mu sync.Mutex
	// +checklocks:mu
	asked int // children that have been asked
	// +checklocks:mu
	asking int // of these, children that may still answer
	// +checklocks:mu
	told int // of these, children that have answered
	// +checklocks:mu
	common []vm.Range // pages that all of them have written; valid when told is learners
}

// FirstWrites returns the pages that a child of the snapshot writes as soon as it runs, or nothing
// while they are unknown. The result must not be changed.
func (l *Lease) FirstWrites() []vm.Range {
	f := &l.firstWrites
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.told < learners {
		return nil
	}
	return f.common
}

// LearnFirstWrites asks a child for the pages that it has written, if not enough children have
// answered. That happens once while the snapshot's files stay open. Without enough answers, first
// writes stay unknown.
func (l *Lease) LearnFirstWrites(ask func() ([]vm.Range, error)) {
	f := &l.firstWrites
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

// begin reports whether to ask one more child, and counts it.
func (f *firstWrites) begin() bool {
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
