// Package decoders measures the cost of every decoder of foreign bytes. Such data comes from
// guests, VMMs, authors of images and clients. Decoding it must not take memory or time out of
// proportion to its size.
package decoders

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// row is a decoder, with an input that an attacker would choose.
type row struct {
	name   string
	input  func(n int) []byte           // about n bytes, for any n; the decoder may refuse it
	decode func(t *testing.T, p []byte) // its error does not matter
	// Length of the input, in bytes. Inputs of a quarter and of four times the length are tested
	// too. 0: 64 KiB
	most   int
	factor int // bytes that may be allocated for one byte of input; 0: 16
	fixed  int // bytes that may be allocated in addition; 0: 1 MiB
}

// growth is the largest factor by which the time may grow for four times the input: 4 would be
// linear, and 16 quadratic.
const growth = 9

// unmeasured is a processor time that is too short to compare.
const unmeasured = 20 * time.Millisecond

// tries is how often a row is measured before it fails. Several tries are needed because other
// goroutines, such as those of the runtime, run at the same time.
const tries = 4

func TestCostOfDecoding(t *testing.T) {
	for _, r := range allRows() {
		t.Run(r.name, func(t *testing.T) {
			most, factor, fixed := or(r.most, 64<<10), or(r.factor, 16), or(r.fixed, 1<<20)
			inputs := [][]byte{r.input(most / 4), r.input(most), r.input(4 * most)}
			r.decode(t, inputs[0]) // does one-time work, such as making tables and pools, which must not count
			var wrong string
			for range tries {
				if wrong = excess(t, r, inputs, factor, fixed); wrong == "" {
					return
				}
			}
			t.Error(wrong)
		})
	}
}

// excess decodes inputs, each four times as long as the previous one. It returns what exceeded its
// bound, or "".
func excess(t *testing.T, r row, inputs [][]byte, factor, fixed int) string {
	before := time.Duration(-1)
	for _, p := range inputs {
		took, bytes := cost(t, r, p)
		if bound := factor*len(p) + fixed; bytes > bound {
			return fmt.Sprintf("%d bytes: %d allocated, want at most %d", len(p), bytes, bound)
		}
		if most := max(growth*before, unmeasured); before >= 0 && took > most {
			return fmt.Sprintf("%d bytes: %v of processor time, want at most %v: a quarter took %v", len(p), took, most, before)
		}
		before = took
	}
	return ""
}

func or(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

// cost measures one decoding. It returns the processor time, and the number of allocated bytes,
// including freed ones.
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

// processorTime returns the time of the whole process, because decoders have goroutines of their
// own.
func processorTime(t *testing.T) time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		t.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
