package sandbox

import (
	"errors"
	"testing"

	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/owner"
)

// If the daemon does not permit all clients to open closed networks, only an admin may open them.
func TestWhoMayOpenWhatIsClosed(t *testing.T) {
	loopback, before := setting(t, "public", "127.0.0.1"), netclient.Default().Policy
	run := as(t, "token:ci")
	for who, err := range map[string]error{
		"token:ci": netclient.MayOpen(run, false, "network.", loopback, before),
		"":         netclient.MayOpen(t.Context(), false, "network.", loopback, before),
	} {
		e, ok := errors.AsType[*owner.ClosedError](err)
		if !ok || e.Who != who || e.Field != "network.allow[0]" {
			t.Errorf("%q: %v, want the field network.allow[0] refused", who, err)
		}
	}
	admin := owner.In(run, owner.Owner{Admin: true})
	if err := netclient.MayOpen(admin, false, "network.", loopback, before); err != nil {
		t.Errorf("an admin: %v", err)
	}
	if err := netclient.MayOpen(run, true, "network.", loopback, before); err != nil {
		t.Errorf("with --run-may-open-private: %v", err)
	}
}
