package face

import (
	"maps"
	"net/http"
	"sync"

	"golang.org/x/time/rate"

	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/owner"
)

// Strangers bounds how often clients come that have nothing but a signed URL: to one sandbox, whichever
// of its URLs they have, to all sandboxes of one owner, and to all. What they ask for is served by the
// guest, but each request costs the daemon a connection to it.
type Strangers struct {
	sandbox, owner bound

	mu  sync.Mutex
	all *rate.Limiter
	by  map[string]*rate.Limiter // by sandbox and by owner; those that have their burst again may be missing
}

// bound is a rate, in requests a second, and how many may come at once.
type bound struct {
	perSecond rate.Limit
	burst     int
}

func (b bound) limiter() *rate.Limiter { return rate.NewLimiter(b.perSecond, b.burst) }

// manySandboxes is to how many sandboxes strangers may come at the full rate at once; of these, to
// manyOfOwner of one owner.
const (
	manySandboxes = 8
	manyOfOwner   = 6
)

// sweepAt is how many sandboxes and owners are remembered before those are dropped to which no stranger
// came lately.
const sweepAt = 1000

// ErrTooOften refuses a stranger's request.
var ErrTooOften = NewError(http.StatusTooManyRequests, "too many requests by signed URLs; try again")

func newStrangers(perSecond float64, burst int) *Strangers {
	times := func(n int) bound { return bound{rate.Limit(float64(n) * perSecond), n * burst} }
	return &Strangers{sandbox: times(1), owner: times(manyOfOwner), all: times(manySandboxes).limiter(),
		by: make(map[string]*rate.Limiter)}
}

// Enter counts a request to a sandbox of an owner, or returns the error with which it is refused. A
// request that is to no sandbox yet has neither.
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
		maps.DeleteFunc(s.by, func(_ string, l *rate.Limiter) bool { return l.Tokens() >= float64(l.Burst()) })
	}
	s.by[key] = b.limiter()
	return s.by[key]
}

// bounded reports whether there is a share for each owner: not for those that cannot be told apart.
func bounded(name string) bool { return owner.FairShare(name, manySandboxes).Most > 0 }

// StrangersShare returns the share of so many places that strangers may have of the sandboxes of one
// owner.
func StrangersShare(name string, places int) gate.Share {
	s := owner.FairShare(name, places)
	s.Key = "strangers to " + s.Key
	return s
}
