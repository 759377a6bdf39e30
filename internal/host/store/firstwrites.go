package store

import (
	"sync"

	"github.com/forkd/forkd/internal/proto/vm"
)

// learners is how many children are asked what they have written. One alone may have done what no
// other does: the first one, whose pages the host reads from disk, is awake for so long that its
// kernel may start another worker thread, by which it writes forty pages more than its siblings.
const learners = 3

// firstWrites learns the pages that every child of a snapshot writes as soon as it runs.
type firstWrites struct {
	mu     sync.Mutex
	asked  int        // children that have been asked
	told   int        // of these, how many have answered
	common []vm.Range // what all of them have written; of use when told is learners
}

// FirstWrites returns the pages that a child of the snapshot writes as soon as it runs; nothing
// while that is not known. It must not be changed.
func (l *Lease) FirstWrites() []vm.Range {
	f := &l.firstWrites
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.told < learners {
		return nil
	}
	return f.common
}

// LearnFirstWrites asks a child for what it has written, if not enough have been asked. That is
// done once for as long as the files of the snapshot stay open. Without an answer from each of
// them, first writes stay unknown.
func (l *Lease) LearnFirstWrites(ask func() ([]vm.Range, error)) {
	f := &l.firstWrites
	if !f.wanted() {
		return
	}
	ranges, err := ask()
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.told > 0 {
		ranges = intersect(f.common, ranges)
	}
	f.common = ranges
	f.told++
}

// wanted reports whether one more child is to be asked.
func (f *firstWrites) wanted() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return f.asked <= learners
}

// intersect returns what lies in both of two lists of ranges in ascending order.
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
