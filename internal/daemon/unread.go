package daemon

import (
	"errors"
	"net/http"
	"sync/atomic"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/owner"
)

// Limits on the number of answers over HTTP/2 that wait for their clients. An answer and its
// request take about 40 KiB of memory if the request has many headers.
const (
	maxUnread         = 2048 // answers to identified clients; one client can have at most three quarters of them
	maxUnreadStranger = 1024 // answers to other clients
	maxUnreadPeer     = 64   // the part of maxUnreadStranger that one peer may have (see auth.PeerName)
)

// unread limits the answers over HTTP/2 that wait because their clients do not receive them. An
// HTTP/2 client can keep the window of each stream empty. Then the answers to all its requests
// wait, even refusals. The gates of package face do not count refusals.
//
// The answers of clients without a token have places of their own. So strangers cannot make the
// daemon reset the answers of identified clients.
type unread struct{ clients, strangers *gate.Gate }

func newUnread() *unread {
	return &unread{clients: gate.New(maxUnread), strangers: gate.New(maxUnreadStranger)}
}

// errManyUnread is the error of writes to an answer that has no place.
var errManyUnread = errors.New("too many answers wait for this client")

// placeFor returns the place for the answer to a request. The place is not taken yet.
func (u *unread) placeFor(r *http.Request) *answerPlace {
	return &answerPlace{of: u, peer: auth.PeerName(r.Context(), r.RemoteAddr)}
}

// answerPlace is the place of one answer.
type answerPlace struct {
	of     *unread
	peer   string
	client atomic.Pointer[string] // nil: not identified; empty: a stranger that has a place for strangers
	left   func()                 // nil: the place is not taken
	full   bool                   // there was no free place
}

// identified is called as described in auth.OnIdentified.
func (p *answerPlace) identified(who string, stranger bool) {
	if stranger {
		who = ""
	}
	p.client.Store(&who)
}

func (p *answerPlace) isUnidentified() bool { return p.client.Load() == nil }

// enter takes the place if the answer does not have it yet. If no place is free, p.full is set
// instead.
func (p *answerPlace) enter() {
	if p.left != nil || p.full {
		return
	}
	places, share := p.of.strangers, gate.Share{Key: p.peer, Most: maxUnreadPeer}
	if who := p.client.Load(); who != nil && *who != "" {
		places, share = p.of.clients, owner.FairShare(*who, maxUnread)
	}
	left, err := places.Enter(share)
	p.left, p.full = left, err != nil
}

// leave frees the place if it is taken.
func (p *answerPlace) leave() {
	if p.left != nil {
		p.left()
	}
}
