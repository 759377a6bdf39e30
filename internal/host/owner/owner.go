// Package owner identifies the owner of a request, and says which part of the host the owner may
// use and see. It decides nothing about sandboxes.
package owner

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/forkd/forkd/internal/gate"
)

// Owner is the owner of the sandboxes that a request creates. It is stored in the request's
// context, so that no function can forget to pass it on.
type Owner struct {
	Name   string
	Most   int // maximum number of sandboxes at a time, including sandboxes that can be resumed; 0: no limit
	Prefix Prefix
	Admin  bool // the owner may give sandboxes access to private networks and the host
}

// Anyone is the name of the owner for all clients of a daemon that requires no credentials. The
// daemon cannot distinguish these clients, so it does not limit the share of each client.
const Anyone = "local"

// Share returns the share of a client or owner in a gate, with at most the given number of places
// at a time. The share of clients without a name, and of clients that the daemon cannot
// distinguish, is not limited.
func Share(name string, most int) gate.Share {
	if name == "" || name == Anyone {
		most = 0
	}
	return gate.Share{Key: name, Most: most}
}

// FairShare returns the share of a client or owner in a gate with the given total number of places.
func FairShare(name string, total int) gate.Share { return Share(name, gate.Fair(total)) }

// TakePlace waits for a place in g. The place counts for the client in ctx. If ctx has no client,
// the place counts for the owner with the name in other.
func TakePlace(ctx context.Context, g *gate.Gate, other string) (release func(), err error) {
	return g.Wait(ctx, PlaceShare(ctx, g, other))
}

// PlaceShare returns the share for TakePlace. The share leaves one place for other clients.
// Otherwise a client whose VMs never answer could take all places.
func PlaceShare(ctx context.Context, g *gate.Gate, other string) gate.Share {
	_, total := g.Count()
	return Share(cmp.Or(Of(ctx).Name, other), total-1)
}

type ownerKey struct{}

// In returns a context for requests of o.
func In(ctx context.Context, o Owner) context.Context { return context.WithValue(ctx, ownerKey{}, o) }

// Of returns the owner of the requests of a context, or an Owner without a name.
func Of(ctx context.Context) Owner {
	o, _ := ctx.Value(ownerKey{}).(Owner)
	return o
}

// Label checks the labels that a request gives to new sandboxes. An owner with a prefix sees only
// sandboxes that have a label with this prefix. So if a request of such an owner has no labels,
// Label adds one.
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

// ClosedError reports a network policy that opens a closed network to sandboxes: private networks,
// the host, or metadata services.
type ClosedError struct {
	Field  string // name of the field in the API
	Who    string // name of the owner; empty if unknown
	Reason string // what the policy opens
}

func (e *ClosedError) Error() string {
	who := e.Who
	if who == "" {
		who = "the client"
	}
	return fmt.Sprintf("%s: %s, which wants the scope admin, and %s does not have it: keep to what the sandbox or its snapshot "+
		"has open, use a token of that scope, or have the daemon started with --run-may-open-private", e.Field, e.Reason, who)
}
