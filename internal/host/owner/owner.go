// Package owner says in whose name something is done on the daemon's side: who an owner is, what part of
// the host it may have and know of. It asks for nothing and decides nothing about a sandbox; that is for
// the packages that hold them.
package owner

import (
	"context"
	"fmt"
	"strings"

	"github.com/forkd/forkd/internal/gate"
)

// Owner is in whose name children are forked. It comes with the context, so that no way to a fork can
// forget it.
type Owner struct {
	Name   string
	Most   int // sandboxes that it may have at once, with all that can be resumed; 0: no limit
	Prefix Prefix
	Admin  bool // may open private networks and the host to sandboxes
}

// Anyone is the name of all clients where none has to prove who it is. They cannot be told apart, so
// they share what the host has without a bound for each.
const Anyone = "local"

// Share returns the share of a gate's places for a client or owner of that name: most of them at
// once. Clients without a name, or that cannot be told apart, are not bounded.
func Share(name string, most int) gate.Share {
	if name == "" || name == Anyone {
		most = 0
	}
	return gate.Share{Key: name, Most: most}
}

// FairShare returns the share of a gate with total places for a client or owner of that name.
func FairShare(name string, total int) gate.Share { return Share(name, gate.Fair(total)) }

type ownerKey struct{}

// In returns a context in which o acts.
func In(ctx context.Context, o Owner) context.Context { return context.WithValue(ctx, ownerKey{}, o) }

// Of returns who acts in a context: an Owner without a name if nobody does.
func Of(ctx context.Context) Owner {
	o, _ := ctx.Value(ownerKey{}).(Owner)
	return o
}

// Label checks the labels that an owner gives to children, and adds one by which the owner reaches
// them where none does.
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
