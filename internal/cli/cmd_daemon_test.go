package cli

import (
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
)

// Snapshots move between hosts unless somebody asks for this host's processor.
func TestDaemonBakesPortableSnapshots(t *testing.T) {
	if got := newDaemonCmd().Flags().Lookup("cpu-template").DefValue; got != vm.TemplatePortable {
		t.Errorf("--cpu-template is %q by default, want %q", got, vm.TemplatePortable)
	}
}
