// Package decoders asks every decoder of foreign bytes what it costs: what guests, VMMs, authors of
// images and clients say must not take memory or time out of proportion to what they have sent.
package decoders

import (
	"runtime"
	"syscall"
	"testing"
	"time"
)

// row is a decoder with an input that an attacker would choose.
type row struct {
	name   string
	input  func(n int) []byte           // about n bytes, for any n; the decoder may refuse it
	decode func(t *testing.T, p []byte) // its error is its own business
	most   int                          // bytes of the largest input; 0: 256 KiB
	factor int                          // bytes that may be allocated for one byte of input; 0: 16
	fixed  int                          // bytes that may be allocated besides; 0: 1 MiB
}

// growth is how many times as long a decoder may take for four times the input: four times would be
// linear, sixteen times quadratic.
const growth = 9

// unmeasured is processor time that is too short to be compared.
const unmeasured = 20 * time.Millisecond

// tries is how often a row is measured before it fails: other goroutines, such as those of the
// runtime, run meanwhile.
const tries = 4

func TestCostOfDecoding(t *testing.T) {
	for _, r := range allRows() {
		t.Run(r.name, func(t *testing.T) {
			most, factor, fixed := or(r.most, 256<<10), or(r.factor, 16), or(r.fixed, 1<<20)
			small, large := r.input(most/4), r.input(most)
			r.decode(t, small) // what is made once, such as tables and pools, is not the input's
			var first, second, allowed time.Duration
			var bytes, bound int
			for range tries {
				first, _ = cost(t, r, small)
				second, bytes = cost(t, r, large)
				allowed, bound = max(growth*first, unmeasured), factor*len(large)+fixed
				if second <= allowed && bytes <= bound {
					t.Logf("%d bytes: %d allocated, %v; a quarter of it: %v", len(large), bytes, second, first)
					return
				}
			}
			t.Errorf("%d bytes: %d allocated, want at most %d; %v of processor time, want at most %v, where a quarter took %v",
				len(large), bytes, bound, second, allowed, first)
		})
	}
}

func or(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

// cost measures one decoding: its processor time, and the bytes that it allocates, freed or not.
func cost(t *testing.T, r row, p []byte) (time.Duration, int) {
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := processorTime(t)
	r.decode(t, p)
	took := processorTime(t) - began
	runtime.ReadMemStats(&after)
	return took, int(after.TotalAlloc - before.TotalAlloc)
}

// processorTime is that of the whole process: decoders have goroutines of their own.
func processorTime(t *testing.T) time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		t.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
