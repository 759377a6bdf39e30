package cli

import (
	"testing"

	"github.com/forkd/forkd/client"
)

// The list omits the saved states of suspended sandboxes, and the snapshots that forks of a running
// sandbox make.
func TestListedSnapshots(t *testing.T) {
	all := func() []client.Snapshot {
		return []client.Snapshot{{Tag: "p"}, {Tag: "suspended-sb-x-1", Transient: true},
			{Tag: "suspended-sb-y-1", Transient: true, Warning: "not on disk"}}
	}
	if list := listed(all(), false); len(list) != 2 || list[0].Tag != "p" || list[1].Warning == "" {
		t.Errorf("listed: %+v", list)
	}
	if list := listed(all(), true); len(list) != 3 {
		t.Errorf("all: %+v", list)
	}
}
