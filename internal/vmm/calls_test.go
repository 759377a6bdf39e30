package vmm

import (
	"flag"
	"testing"

	"github.com/forkd/forkd/internal/jail/filter"
)

var update = flag.Bool("update", false, "write the filter that is generated")

// The generated file zfilter_linux_amd64.go agrees with the functions calls and setUpCalls.
func TestFilterIsThatOfTheCalls(t *testing.T) {
	if err := filter.CheckSource("zfilter_linux_amd64.go", "vmm", calls(), setUpCalls(), *update); err != nil {
		t.Error(err)
	}
}
