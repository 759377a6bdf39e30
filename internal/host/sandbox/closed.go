package sandbox

import (
	"context"
	"fmt"

	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/hostroute"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// ClosedError refuses somebody a network policy that opens what is closed to sandboxes: private
// networks, the host, metadata services.
type ClosedError struct {
	Field  string // as the API spells it
	Who    string // empty if unknown
	Reason string // what would be open
}

func (e *ClosedError) Error() string {
	who := e.Who
	if who == "" {
		who = "the client"
	}
	return fmt.Sprintf("%s: %s, which wants the scope admin, and %s does not have it: keep to what the sandbox or its snapshot "+
		"has open, use a token of that scope, or have the daemon started with --run-may-open-private", e.Field, e.Reason, who)
}

// mayOpen refuses a setting that opens more of what is closed than present does, to who may not.
// forkd-net connects from the host's own network, where loopback and private addresses have servers
// that trust it. Errors name the field below prefix.
func (m *Manager) mayOpen(ctx context.Context, prefix string, asked *netclient.Setting,
	present netproto.Policy) error {
	o := ownerOf(ctx)
	if asked == nil || o.admin || m.cfg.OpenPrivate {
		return nil
	}
	if wide := asked.Policy.Widens(&present, hostroute.IsLocal); wide != nil {
		return &ClosedError{Field: prefix + wide.Field, Who: o.name, Reason: wide.Reason}
	}
	return nil
}
