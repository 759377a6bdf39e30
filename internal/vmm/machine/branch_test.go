package machine

import "testing"

// storm uses the bound of the request. Without a bound, it returns true only if there were enough
// faults and faults have caused most captures.
func TestStorm(t *testing.T) {
	for _, c := range []struct {
		bound, captured, faults uint64
		want                    bool
	}{
		{bound: 0, captured: 100, faults: 100},
		{bound: 0, captured: 2048, faults: 2048},
		{bound: 0, captured: 4098, faults: 2049},
		{bound: 0, captured: 4097, faults: 2049, want: true},
		{bound: 3, captured: 1000, faults: 2},
		{bound: 3, captured: 1000, faults: 3, want: true},
		{bound: 5000, captured: 4999, faults: 4999},
	} {
		if got := storm(c.bound, c.captured, c.faults); got != c.want {
			t.Errorf("bound %d, %d of %d captured by faults: %v", c.bound, c.faults, c.captured, got)
		}
	}
}
