package feed

import (
	"flag"
	"testing"

	"github.com/forkd/forkd/internal/jail/filter"
)

var update = flag.Bool("update", false, "write the filter that is generated")

// The committed filter must equal the filter that is generated from the list that calls() returns.
func TestFilterIsThatOfTheCalls(t *testing.T) {
	if err := filter.CheckSource("zfilter_linux_amd64.go", "feed", calls(), nil, *update); err != nil {
		t.Error(err)
	}
}
