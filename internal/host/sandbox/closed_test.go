package sandbox

import (
	"errors"
	"testing"

	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/owner"
)

// Only an admin may open closed networks, unless the daemon permits all clients to open them.
func TestWhoMayOpenWhatIsClosed(t *testing.T) {
	loopback, before := setting(t, "public", "127.0.0.1"), netclient.Default().Policy
	run := as(t, "token:ci")
	m := &Manager{}
	for who, err := range map[string]error{
		"token:ci": m.mayOpen(run, "network.", loopback, before),
		"":         m.mayOpen(t.Context(), "network.", loopback, before),
	} {
		e, ok := errors.AsType[*owner.ClosedError](err)
		if !ok || e.Who != who || e.Field != "network.allow[0]" {
			t.Errorf("%q: %v, want the field network.allow[0] refused", who, err)
		}
	}
	if err := m.mayOpen(owner.In(run, owner.Owner{Admin: true}), "network.", loopback, before); err != nil {
		t.Errorf("an admin: %v", err)
	}
	m.cfg.OpenPrivate = true
	if err := m.mayOpen(run, "network.", loopback, before); err != nil {
		t.Errorf("with --run-may-open-private: %v", err)
	}
}
