package tally

import "testing"

// Written returns the sum of the bytes that all VMs of a sandbox have written. For a VM that begins
// with dirty pages, counting begins at the first measurement.
func TestWrittenSinceTheLatestSnapshot(t *testing.T) {
	var c Tally
	want := func(when string, now, want Written) {
		t.Helper()
		if got := c.Written(now); got != want {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
	}
	want("after a fork", Written{100, 10}, Written{})
	want("later", Written{130, 15}, Written{30, 5})
	c.Mark(0)
	c.Begin(Written{40, 4})
	want("after a branch that left 40", Written{70, 5}, Written{30, 1})
	want("when more of the rest is shared", Written{20, 5}, Written{0, 1})
	want("and then", Written{30, 5}, Written{10, 1})
	c.Carry(Written{50, 9}, &Written{8, 2})
	want("after a branch that goes with its children", Written{9, 2}, Written{31, 5})
	c.Carry(Written{18, 2}, nil)
	want("in the next VM", Written{1000, 500}, Written{40, 5})
	want("later in that", Written{1001, 501}, Written{41, 6})
	c.Reset()
	want("after a rollback", Written{900, 1}, Written{})
}
