package sshd

import (
	"io"
	"slices"
	"sync"
)

// logins holds the connections that have not logged in. If a peer has too many such connections, a
// new one replaces the oldest connection of this peer. If all peers together have too many, a new
// one replaces the oldest connection of the peer that has the most. So a client that does not log
// in cannot keep others out by holding connections.
type logins struct {
	most       int
	mostOfPeer int

	mu sync.Mutex
	// +checklocks:mu
	open []*attempt // oldest first
}

// attempt is a connection that has not logged in.
type attempt struct {
	conn io.Closer
	peer string
	of   *logins
}

// enter adds a connection.
func (l *logins) enter(conn io.Closer, peer string) *attempt {
	a := &attempt{conn, peer, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	of, most := make(map[string]int), 0
	for _, o := range l.open {
		of[o.peer]++
		most = max(most, of[o.peer])
	}
	weakest := -1
	switch {
	case of[peer] >= l.mostOfPeer:
		weakest = slices.IndexFunc(l.open, func(o *attempt) bool { return o.peer == peer })
	case len(l.open) >= l.most:
		weakest = slices.IndexFunc(l.open, func(o *attempt) bool { return of[o.peer] == most })
	}
	if weakest >= 0 {
		l.open[weakest].conn.Close()
		l.open = slices.Delete(l.open, weakest, weakest+1)
	}
	l.open = append(l.open, a)
	return a
}

// has() reports whether the connection still has its place, and no newer connection has taken it.
func (a *attempt) has() bool {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	return slices.Contains(a.of.open, a)
}

// leave removes a connection from the list after the connection has logged in or ended. It reports
// whether the list still had the connection.
func (a *attempt) leave() bool {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	i := slices.Index(a.of.open, a)
	if i >= 0 {
		a.of.open = slices.Delete(a.of.open, i, i+1)
	}
	return i >= 0
}
