package v1

import (
	"maps"
	"net/http"
	"sync"

	"golang.org/x/time/rate"
)

// strangers bounds how often they come who have nothing but a signed URL: to one sandbox, whichever
// of its URLs they have, and to all. What they ask for is served by the guest, but each request
// costs the daemon a connection to it.
type strangers struct {
	perSecond float64
	burst     int

	mu  sync.Mutex
	all *rate.Limiter
	by  map[string]*rate.Limiter // by sandbox; those that have their burst again may be missing
}

// manySandboxes is to how many sandboxes strangers may come at the full rate at once.
const manySandboxes = 8

// sweepAt is how many sandboxes are remembered before those are forgotten to which nobody came
// lately.
const sweepAt = 1000

var errTooOften = &requestError{http.StatusTooManyRequests, "too many requests by signed URLs; try again"}

func newStrangers(perSecond float64, burst int) *strangers {
	return &strangers{
		perSecond: perSecond, burst: burst, by: make(map[string]*rate.Limiter),
		all: rate.NewLimiter(rate.Limit(manySandboxes*perSecond), manySandboxes*burst),
	}
}

// enter counts a request to a sandbox, or returns the error with which it is refused.
func (s *strangers) enter(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.by[id]
	if own == nil {
		if len(s.by) >= sweepAt {
			maps.DeleteFunc(s.by, func(_ string, l *rate.Limiter) bool { return l.Tokens() >= float64(s.burst) })
		}
		own = rate.NewLimiter(rate.Limit(s.perSecond), s.burst)
		s.by[id] = own
	}
	if own.Allow() && s.all.Allow() {
		return nil
	}
	return errTooOften
}
