// Package owner identifies the owner of an operation on the daemon's side, with the part of the
// host that the owner may use and see. It decides nothing about sandboxes; the packages that hold
// them do.
package owner

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/forkd/forkd/internal/gate"
)

// Owner is the owner of forked children. It is part of the context, so that no code path to a fork
// can forget it.
type Owner struct {
	Name   string
	Most   int // most sandboxes at once, including all that can be resumed; 0: no limit
	Prefix Prefix
	Admin  bool // may give sandboxes access to private networks and the host
}

// Anyone is the name of all clients of a daemon that requires no credentials. They cannot be told
// apart, so they share the host without a bound for each.
const Anyone = "local"

// Share returns the share of a gate's places for a client or owner: at most most at once. Clients
// without a name, or that cannot be told apart, are not bounded.
func Share(name string, most int) gate.Share {
	if name == "" || name == Anyone {
		most = 0
	}
	return gate.Share{Key: name, Most: most}
}

// FairShare returns the share of a client or owner in a gate with total places.
func FairShare(name string, total int) gate.Share { return Share(name, gate.Fair(total)) }

// TakePlace waits for a place of the host on behalf of the client in ctx or, without one, of the
// owner with the name other.
func TakePlace(ctx context.Context, g *gate.Gate, other string) (release func(), err error) {
	return g.Wait(ctx, PlaceShare(ctx, g, other))
}

// PlaceShare is the share of TakePlace's client or owner. It leaves one place to others, so that
// one client, whose VMs may not answer, cannot hold all places.
func PlaceShare(ctx context.Context, g *gate.Gate, other string) gate.Share {
	_, total := g.Count()
	return Share(cmp.Or(Of(ctx).Name, other), total-1)
}

type ownerKey struct{}

// In returns a context in which o acts.
func In(ctx context.Context, o Owner) context.Context { return context.WithValue(ctx, ownerKey{}, o) }

// Of returns the owner that acts in a context, or an Owner without a name.
func Of(ctx context.Context) Owner {
	o, _ := ctx.Value(ownerKey{}).(Owner)
	return o
}

// Label checks the labels that an owner gives to children. If none of them lets the owner reach the
// children, it adds one.
func (o Owner) Label(labels map[string]string) (map[string]string, error) {
	if o.Prefix == "" {
		return labels, nil
	}
	own := make(map[string]string, len(labels)+1)
	for name, value := range labels {
		if !strings.HasPrefix(name, string(o.Prefix)) {
			return nil, &PrefixError{Who: o.Name, Prefix: o.Prefix, What: fmt.Sprintf("labels: %.70q", name)}
		}
		own[name] = value
	}
	if len(own) == 0 {
		own[string(o.Prefix)+"owner"] = o.Name
	}
	return own, nil
}

// ClosedError refuses a network policy that opens what is closed to sandboxes: private networks,
// the host, metadata services.
type ClosedError struct {
	Field  string // the API's name of the field
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
