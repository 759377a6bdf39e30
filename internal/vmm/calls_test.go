package vmm

import (
	"flag"
	"testing"

	"github.com/forkd/forkd/internal/jail/filter"
)

var update = flag.Bool("update", false, "write the filter that is generated")

// The generated filter permits exactly the calls that the packages' Calls functions return.
func TestFilterIsThatOfTheCalls(t *testing.T) {
	if err := filter.CheckSource("zfilter_linux_amd64.go", "vmm", calls(), setUpCalls(), *update); err != nil {
		t.Error(err)
	}
}
