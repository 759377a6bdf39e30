package uffd

import "sync/atomic"

// bitmap has one bit for each page of guest memory.
type bitmap []atomic.Uint64

func newBitmap(pages uint64) bitmap { return make(bitmap, (pages+63)/64) }

func (b bitmap) get(i uint64) bool { return b[i/64].Load()>>(i%64)&1 != 0 }

// set sets bit i and reports whether the bit was clear before.
func (b bitmap) set(i uint64) bool { return b[i/64].Or(1<<(i%64))>>(i%64)&1 == 0 }

// setRange sets the n bits with the numbers first to first+n-1. It sets 64 bits at a time, because
// Freeze calls it for all dirty pages while the guest is stopped.
func (b bitmap) setRange(first, n uint64) {
	for end := first + n; first < end; {
		count := min(end-first, 64-first%64)
		b[first/64].Or(^uint64(0) >> (64 - count) << (first % 64))
		first += count
	}
}
