package cli

import (
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
)

// By default snapshots can move between hosts; using this host's processor model is an option.
func TestDaemonBakesPortableSnapshots(t *testing.T) {
	if got := newDaemonCmd().Flags().Lookup("cpu-template").DefValue; got != vm.TemplatePortable {
		t.Errorf("--cpu-template is %q by default, want %q", got, vm.TemplatePortable)
	}
}
