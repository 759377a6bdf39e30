package dns

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// maxMemory bounds the pairs of name and address that are kept for one sandbox. The oldest
	// pairs are dropped first.
	maxMemory = 2048

	// maxNames bounds the names of one address. To decide about a connection, the policy compares
	// each name with each rule, and a new policy decides about all connections in one step.
	maxNames = 128

	// A pair is kept for its TTL, but at least for minKeep and at most for maxKeep. minKeep is
	// long: many programs look up a name once, and then connect to the address for as long as the
	// program runs.
	minKeep = 10 * time.Minute
	maxKeep = 24 * time.Hour
)

// memory holds the names and addresses that a sandbox received.
type memory struct {
	mu    sync.Mutex
	addrs map[netip.Addr][]given // names of each address, the newest last
	order []pair                 // oldest first
}

type given struct {
	name    string
	expires time.Time
}

type pair struct {
	addr netip.Addr
	name string
}

func (m *memory) put(name string, addr netip.Addr, ttl time.Duration, now time.Time) {
	expires := now.Add(min(max(ttl, minKeep), maxKeep))
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.addrs == nil {
		m.addrs = map[netip.Addr][]given{}
	}
	names := m.addrs[addr]
	if i := slices.IndexFunc(names, func(g given) bool { return g.name == name }); i >= 0 {
		m.addrs[addr] = append(slices.Delete(names, i, i+1), given{name, expires})
		return
	}
	switch {
	case len(names) == maxNames:
		m.forgetLocked(pair{addr, names[0].name})
	case len(m.order) == maxMemory:
		m.forgetLocked(m.order[0])
	}
	m.addrs[addr] = append(m.addrs[addr], given{name, expires})
	m.order = append(m.order, pair{addr, name})
}

func (m *memory) forgetLocked(p pair) {
	if i := slices.Index(m.order, p); i == 0 {
		m.order = m.order[1:] // without moving the other entries
	} else {
		m.order = slices.Delete(m.order, i, i+1)
	}
	names := slices.DeleteFunc(m.addrs[p.addr], func(g given) bool { return g.name == p.name })
	if len(names) == 0 {
		delete(m.addrs, p.addr)
	} else {
		m.addrs[p.addr] = names
	}
}

func (m *memory) names(addr netip.Addr, now time.Time) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for _, g := range m.addrs[addr] {
		if now.Before(g.expires) {
			names = append(names, g.name)
		}
	}
	return names
}
