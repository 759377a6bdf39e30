package sandbox

import (
	"context"
	"fmt"
	"sync"
)

// owner is in whose name children are forked. It comes with the context, so that no way to a fork
// can forget it.
type owner struct {
	name   string
	most   int // sandboxes at once; 0: no limit
	prefix Prefix
}

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
