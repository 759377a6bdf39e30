// Package decoders measures the cost of every decoder of bytes that come from guests, VMMs,
// clients, or the authors of images. The memory and the time for decoding must be proportional to
// the number of bytes.
package decoders

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// row is a test of a decoder, with an input that an attacker would choose.
type row struct {
	name   string
	input  func(n int) []byte           // returns about n bytes, for any n; the decoder may refuse them
	decode func(t *testing.T, p []byte) // decodes p; errors are ignored
	// Length of the input, in bytes; 0 means 64 KiB. The test also uses a quarter of the length and
	// four times the length.
	most   int
	factor int // bytes that may be allocated for one byte of input; 0 means 16
	fixed  int // bytes that may be allocated in addition; 0 means 1 MiB
}

// growth is the maximum ratio of the processor times for two inputs, if the second input is four
// times as long as the first. The ratio is 4 for a linear decoder, and 16 for a quadratic decoder.
const growth = 9

// unmeasured is a processor time below which results are not compared, because they would be
// inaccurate.
const unmeasured = 20 * time.Millisecond

// tries is how often a row may exceed its bounds before it fails. A single measurement may be too
// high because other goroutines, such as those of the runtime, run at the same time.
const tries = 4

func TestCostOfDecoding(t *testing.T) {
	for _, r := range allRows() {
		t.Run(r.name, func(t *testing.T) {
			most, factor, fixed := or(r.most, 64<<10), or(r.factor, 16), or(r.fixed, 1<<20)
			inputs := [][]byte{r.input(most / 4), r.input(most), r.input(4 * most)}
			r.decode(t, inputs[0]) // does one-time work, such as making tables and pools, which is not measured
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

// excess decodes inputs, each four times as long as the previous one, and returns a description of
// the bound that was exceeded, or "".
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

// cost measures one decoding. It returns the processor time and the number of allocated bytes.
// Freed bytes are also counted.
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

// processorTime returns the processor time of the whole process, because some decoders start
// goroutines.
func processorTime(t *testing.T) time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		t.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
