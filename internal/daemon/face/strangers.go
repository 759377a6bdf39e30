package face

import (
	"maps"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/owner"
)

// Strangers limits the rate of requests by clients that have only a signed URL. There are rates for
// one sandbox with all of its URLs, for all sandboxes of one owner, and for all sandboxes. The
// guest serves such a request, but each request costs the daemon a connection to the guest.
//
// A request that names no sandbox costs a search for the sandbox whose token has signed it. The
// rate of searches is limited for each peer, and for all peers together: there is one limit for
// searches that find a sandbox, and a lower limit for searches that find none.
type Strangers struct {
	sandbox, owner bound

	mu  sync.Mutex
	all *rate.Limiter
	by  map[string]*rate.Limiter // limiters of sandboxes and owners; limiters with a full burst may be missing

	peer   bound
	found  *rate.Limiter            // searches that found a sandbox
	missed *rate.Limiter            // searches that found nothing
	open   int                      // searches that have not ended; each may soon count against found or missed
	peers  map[string]*rate.Limiter // searches of each peer; entries with a full burst may be missing
	others *rate.Limiter            // searches of peers without an entry, if there is no room for more entries
	swept  time.Time                // when the map peers was last swept because it was full
}

// bound is a rate, in requests per second, and a burst.
type bound struct {
	perSecond rate.Limit
	burst     int
}

func (b bound) limiter() *rate.Limiter { return rate.NewLimiter(b.perSecond, b.burst) }

// manySandboxes is the number of sandboxes that can receive strangers' requests at the full rate at
// the same time. manyOfOwner is the number of these sandboxes that may belong to one owner.
const (
	manySandboxes = 8
	manyOfOwner   = 6
)

// peersAtOnce is the number of peers that can use up the rate of searches that find nothing. A
// single peer may search at a fifth of this rate.
const peersAtOnce = 5

// maxPeers bounds the number of peers with an entry. (A peer may be a whole IPv6 network; see
// auth.PeerName.) If there is no room, entries with a full burst are dropped, at most once in
// sweepEvery.
const (
	maxPeers   = 4096
	sweepEvery = time.Second
)

// sweepAt is a number of limiters. If there are more limiters than this, the limiters that no
// stranger used lately are dropped.
const sweepAt = 1000

// ErrTooOften refuses a stranger's request.
var ErrTooOften = NewError(http.StatusTooManyRequests, "too many requests by signed URLs; try again")

func newStrangers(perSecond float64, burst int) *Strangers {
	times := func(n int) bound { return bound{rate.Limit(float64(n) * perSecond), n * burst} }
	peer := bound{rate.Limit(perSecond / peersAtOnce), max(1, burst/peersAtOnce)}
	return &Strangers{sandbox: times(1), owner: times(manyOfOwner), all: times(manySandboxes).limiter(),
		by: make(map[string]*rate.Limiter), peer: peer,
		found: times(manySandboxes).limiter(), missed: times(1).limiter(),
		peers: make(map[string]*rate.Limiter), others: peer.limiter()}
}

// Search counts a search for the sandbox of a request, or returns the error that refuses it. The
// parameter peer is the name of the client as in auth.PeerName. After a search the caller must call
// Searched.
func (s *Strangers) Search(peer string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	needed := float64(s.open + 1)
	if !s.peerLocked(peer).Allow() || s.missed.Tokens() < needed || s.found.Tokens() < needed {
		return ErrTooOften
	}
	s.open++
	return nil
}

// Searched counts the outcome of a search.
func (s *Strangers) Searched(found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if found {
		s.found.Allow()
	} else {
		s.missed.Allow()
	}
}

func (s *Strangers) peerLocked(peer string) *rate.Limiter {
	if l := s.peers[peer]; l != nil {
		return l
	}
	if len(s.peers) >= maxPeers && time.Since(s.swept) >= sweepEvery {
		s.swept = time.Now()
		maps.DeleteFunc(s.peers, isFull)
	}
	if len(s.peers) >= maxPeers {
		return s.others
	}
	s.peers[peer] = s.peer.limiter()
	return s.peers[peer]
}

// isFull reports whether a limiter's whole burst is available.
func isFull(_ string, l *rate.Limiter) bool { return l.Tokens() >= float64(l.Burst()) }

// Enter counts a request to a sandbox of an owner, or returns the error that refuses it.
func (s *Strangers) Enter(id, owner string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.limiterLocked("sandbox "+id, s.sandbox).Allow() {
		return ErrTooOften
	}
	if bounded(owner) && !s.limiterLocked("owner "+owner, s.owner).Allow() || !s.all.Allow() {
		return ErrTooOften
	}
	return nil
}

func (s *Strangers) limiterLocked(key string, b bound) *rate.Limiter {
	if l := s.by[key]; l != nil {
		return l
	}
	if len(s.by) >= sweepAt {
		maps.DeleteFunc(s.by, isFull)
	}
	s.by[key] = b.limiter()
	return s.by[key]
}

// bounded reports whether an owner has a limit. Owners without a name, and the one owner of a
// daemon without tokens, have no limit.
func bounded(name string) bool { return owner.FairShare(name, manySandboxes).Most > 0 }

// StrangersShare returns the limit on the places that strangers may take at the sandboxes of one
// owner. The second argument is the number of all places.
func StrangersShare(name string, places int) gate.Share {
	s := owner.FairShare(name, places)
	s.Key = "strangers to " + s.Key
	return s
}
