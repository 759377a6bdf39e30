package store

import (
	"sync"

	"github.com/forkd/forkd/internal/proto/vm"
)

// learners is how many children say what they have written. One alone may have done what no other
// does: the first one, whose pages the host reads from disk, is awake for so long that its kernel
// may start another worker thread, by which it writes forty pages more than its siblings.
const learners = 3

// maxAsked is how many children are asked at most, one after another where some do not answer: a
// fork that is called off takes those with it that are being asked.
const maxAsked = 3 * learners

// firstWrites learns the pages that every child of a snapshot writes as soon as it runs.
type firstWrites struct {
	mu     sync.Mutex
	asked  int        // children that have been asked
	asking int        // of these, how many may still answer
	told   int        // and how many have
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

// LearnFirstWrites asks a child for what it has written, if not enough have answered. That is done
// once for as long as the files of the snapshot stay open. Without enough answers, first writes
// stay unknown.
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

// begin reports whether one more child is to be asked, which is counted.
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
