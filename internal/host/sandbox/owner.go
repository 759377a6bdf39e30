package sandbox

import (
	"context"

	"github.com/forkd/forkd/internal/gate"
)

// owner is in whose name children are forked. It comes with the context, so that no way to a fork
// can forget it.
type owner struct {
	name   string
	most   int // sandboxes at once; 0: no limit
	prefix Prefix
	admin  bool // see AsAdmin
}

// Anyone is the name of all clients where none has to prove who it is. They cannot be told apart, so
// they share what the host has without a bound for each.
const Anyone = "local"

// shareOf returns the share of a gate's places for a client or owner of that name: most of them at
// once. Clients without a name, or that cannot be told apart, are not bounded.
func shareOf(name string, most int) gate.Share {
	if name == "" || name == Anyone {
		most = 0
	}
	return gate.Share{Key: name, Most: most}
}

// FairShare returns the share of a gate with total places for a client or owner of that name.
func FairShare(name string, total int) gate.Share { return shareOf(name, gate.Fair(total)) }

type ownerKey struct{}

// OwnedBy returns a context in which children are forked for somebody, who may have at most so many
// sandboxes at once, with all that can be resumed; 0: no limit. They know of what is within prefix.
func OwnedBy(ctx context.Context, name string, most int, prefix Prefix) context.Context {
	return context.WithValue(ctx, ownerKey{}, owner{name: name, most: most, prefix: prefix})
}

// AsAdmin returns the context of a client that may open private networks and the host to sandboxes.
func AsAdmin(ctx context.Context) context.Context {
	o := ownerOf(ctx)
	o.admin = true
	return context.WithValue(ctx, ownerKey{}, o)
}

func ownerOf(ctx context.Context) owner {
	o, _ := ctx.Value(ownerKey{}).(owner)
	return o
}
