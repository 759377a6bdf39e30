package vm

import (
	"errors"
	"math"
	"testing"
)

func TestLimitsAreChecked(t *testing.T) {
	for _, ok := range []Limits{{}, {MemoryMiB: 32, SwapMiB: 1, CPUs: 0.01, CPUWeight: 10_000, IOBytesPerSecond: 1 << 20,
		IOOpsPerSecond: 64}} {
		if err := ok.Check(); err != nil {
			t.Errorf("%+v: %v", ok, err)
		}
	}
	for _, c := range []struct {
		field string
		l     Limits
	}{
		{"memory_mib", Limits{MemoryMiB: 31}}, {"memory_mib", Limits{MemoryMiB: math.MaxUint64}},
		{"swap_mib", Limits{SwapMiB: 1}},
		{"swap_mib", Limits{MemoryMiB: 64, SwapMiB: math.MaxUint64}}, {"cpus", Limits{CPUs: -1}},
		{"cpus", Limits{CPUs: math.NaN()}},
		{"cpus", Limits{CPUs: 1e9}}, {"cpu_weight", Limits{CPUWeight: 10_001}},
		{"io_bytes_per_second", Limits{IOBytesPerSecond: math.MaxUint64}},
		{"io_bytes_per_second", Limits{IOBytesPerSecond: 1<<20 - 1}}, {"io_ops_per_second", Limits{IOOpsPerSecond: 63}},
		{"io_ops_per_second", Limits{IOOpsPerSecond: math.MaxUint64}},
	} {
		var wrong *LimitError
		if err := c.l.Check(); !errors.As(err, &wrong) || wrong.Field != c.field {
			t.Errorf("%+v: %v, want an error about %s", c.l, err, c.field)
		}
	}
}
