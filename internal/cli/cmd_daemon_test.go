package cli

import (
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
)

// By default, snapshots can be moved between hosts. An option makes them use this host's processor
// model instead.
func TestDaemonBakesPortableSnapshots(t *testing.T) {
	if got := newDaemonCmd().Flags().Lookup("cpu-template").DefValue; got != vm.TemplatePortable {
		t.Errorf("--cpu-template is %q by default, want %q", got, vm.TemplatePortable)
	}
}
