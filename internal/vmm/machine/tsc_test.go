package machine

import (
	"errors"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/vmm/cpuid"
	"github.com/forkd/forkd/internal/vmm/kvm"
)

func TestTSCRateOfAnotherHost(t *testing.T) {
	const khz = 2_500_000
	for _, c := range []struct {
		name        string
		saved, host uint32
		scaling     bool
		ok          bool
	}{
		{"the same", khz, khz, false, true},
		{"within the tolerance, faster", khz, khz + 600, false, true},
		{"within the tolerance, slower", khz, khz - 600, false, true},
		{"a faster host", khz, khz + 1000, false, false},
		{"a slower host", khz, khz - 1000, false, false},
		{"a faster host that scales", khz, 2 * khz, true, true},
		{"a slower host that scales", khz, khz / 2, true, true},
		{"nonsense", 0, khz, false, false},
	} {
		err := checkTSCRate(c.saved, c.host, c.scaling)
		var inc *cpuid.IncompatibleError
		switch {
		case c.ok && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case !c.ok && (!errors.As(err, &inc) || !strings.Contains(err.Error(), "no tsc scaling")):
			t.Errorf("%s: %v, want an IncompatibleError", c.name, err)
		}
	}
}

func TestTSCsAreAligned(t *testing.T) {
	msrs := func(tsc, adjust uint64) []kvm.MSREntry {
		return []kvm.MSREntry{{Index: 0x174, Data: 5}, {Index: cpuid.MSRTSCAdjust, Data: adjust},
			{Index: cpuid.MSRTSC, Data: tsc}}
	}
	for _, c := range []struct {
		name       string
		first, own []kvm.MSREntry
		want       uint64
		pos        int // index of the TSC in own
	}{
		{"read seconds later", msrs(1000, 0), msrs(9e9, 0), 1000, 2},
		{"shifted together", msrs(1000, 7), msrs(9e9, 7), 1000, 2},
		{"shifted by the guest", msrs(1000, 0), msrs(9e9, 7), 9e9, 2},
		{"without TSC_ADJUST", msrs(1000, 0)[2:], msrs(9e9, 0)[2:], 1000, 0},
		{"one without a TSC", nil, msrs(9e9, 0), 9e9, 2},
	} {
		alignTSC(c.first, c.own)
		if got := c.own[c.pos].Data; got != c.want {
			t.Errorf("%s: TSC %d, want %d", c.name, got, c.want)
		}
	}
}
