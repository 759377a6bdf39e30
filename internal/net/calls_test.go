package net

import (
	"flag"
	"testing"

	"github.com/forkd/forkd/internal/jail/filter"
)

var update = flag.Bool("update", false, "write the filter that is generated")

// The filter that the process installs is generated from the calls that its parts declare.
func TestFilterIsThatOfTheCalls(t *testing.T) {
	if err := filter.CheckSource("zfilter_linux_amd64.go", "net", calls(), nil, *update); err != nil {
		t.Error(err)
	}
}
