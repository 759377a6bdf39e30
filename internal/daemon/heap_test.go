package daemon

import (
	"log/slog"
	"math"
	"runtime/debug"
	"testing"
)

func TestHeapLimit(t *testing.T) {
	for memory, want := range map[uint64]uint64{
		64 << 30: 8 << 30, 8 << 30: 1 << 30, 4 << 30: 1 << 30, 1 << 30: 512 << 20, // bytes
	} {
		if got := heapLimit(memory); got != want {
			t.Errorf("of %d MiB: %d MiB, want %d", memory>>20, got>>20, want>>20)
		}
	}
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	limitHeap("1GiB", slog.New(slog.DiscardHandler)) // the runtime applied GOMEMLIMIT at its start
	if got := debug.SetMemoryLimit(-1); got != math.MaxInt64 {
		t.Errorf("with GOMEMLIMIT: %d", got)
	}
	limitHeap("", slog.New(slog.DiscardHandler))
	if got := debug.SetMemoryLimit(-1); got == math.MaxInt64 || got < 64<<20 {
		t.Errorf("without GOMEMLIMIT: %d", got)
	}
}
