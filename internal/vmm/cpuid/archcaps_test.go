package cpuid

import (
	"errors"
	"strings"
	"testing"
)

func TestCompatibleArchCaps(t *testing.T) {
	const rdclNo, rsba, mdsNo, rrsba = 1 << 0, 1 << 2, 1 << 5, 1 << 19
	for _, c := range []struct {
		name        string
		saved, host uint64
		want        string // text in the error; "" if compatible
	}{
		{"the same", rdclNo | rsba, rdclNo | rsba, ""},
		{"a better host", rdclNo, rdclNo | mdsNo, ""},
		{"a host without a weakness", rdclNo | rrsba, rdclNo, ""},
		{"a vulnerable host", rdclNo | mdsNo, mdsNo, "lacks arch_capabilities rdcl_no"},
		{"a host that lacks two", rdclNo | mdsNo, 0, "rdcl_no, mds_no"},
		{"a host with a weakness", rdclNo, rdclNo | rsba, "it has rsba"},
		{"a new bit", 1 << 62, 0, "its_no"},
		{"an unknown bit", 1 << 50, 0, "bit 50"},
	} {
		err := CompatibleArchCaps(c.saved, c.host)
		var inc *IncompatibleError
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (!errors.As(err, &inc) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want an IncompatibleError with %q", c.name, err, c.want)
		}
	}
}
