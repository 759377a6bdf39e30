package sandbox

import (
	"context"
	"fmt"
	"sync"

	"github.com/forkd/forkd/internal/gate"
)

// owner is in whose name children are forked. It comes with the context, so that no way to a fork
// can forget it.
type owner struct {
	name   string
	most   int // sandboxes at once; 0: no limit
	prefix Prefix
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
	return context.WithValue(ctx, ownerKey{}, owner{name, most, prefix})
}

func ownerOf(ctx context.Context) owner {
	o, _ := ctx.Value(ownerKey{}).(owner)
	return o
}

// owners counts the children that are on their way, by owner: two requests cannot both take the
// last room.
type owners struct {
	mu     sync.Mutex
	coming map[string]int
}

// reserve takes room for n more sandboxes of an owner. release is called when they are there, or
// will not come.
func (m *Manager) reserve(o owner, n int) (release func(), err error) {
	if o.most == 0 {
		return func() {}, nil
	}
	m.owners.mu.Lock()
	defer m.owners.mu.Unlock()
	have := m.owners.coming[o.name]
	for _, i := range m.List() {
		if i.Owner == o.name && (i.State != Exited || i.Resumable) {
			have++
		}
	}
	if have+n > o.most {
		m.cfg.Observer.Refused(CodeOwnSandboxes)
		return nil, &AdmissionError{Code: CodeOwnSandboxes, Reason: fmt.Sprintf(
			"%d more would exceed the maximum of %d sandboxes of %s, which has %d; kill some", n, o.most, o.name, have)}
	}
	m.owners.coming[o.name] += n
	return func() {
		m.owners.mu.Lock()
		defer m.owners.mu.Unlock()
		if m.owners.coming[o.name] -= n; m.owners.coming[o.name] == 0 {
			delete(m.owners.coming, o.name)
		}
	}, nil
}
