package webhook

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/forkd/forkd/internal/host/event"
)

// If the server refuses some events because of their texts, these events delay later events by only
// a few requests. Clients choose these texts.
func TestRefusedEvents(t *testing.T) {
	s := receive(t, httptest.NewServer)
	asked := map[string]int{}
	s.answer = func(w http.ResponseWriter, _ *http.Request, got request) bool {
		asked[got.body.SandboxID]++
		poison := got.body.SandboxID == "poison" || got.body.SandboxID == "another"
		if poison {
			w.WriteHeader(http.StatusForbidden)
		}
		return poison
	}
	set := open(t, settings{URL: s.URL})
	ring := event.NewRing(event.DefaultSize)
	emit(ring, "a", "poison", "b", "another", "c")
	c, stop := run(t, set, ring)
	s.want(t, "missed start", "sandbox.created a", "missed given_up", "sandbox.created b", "missed given_up",
		"sandbox.created c")
	stop()
	if asked["poison"] != refusals+1 || asked["another"] != 2 {
		t.Errorf("%d requests for the first refused event, %d for the second; want %d and 2", asked["poison"],
			asked["another"], refusals+1)
	}
	if !slices.Equal(c.lost, []string{lostGivenUp, lostGivenUp}) {
		t.Errorf("lost: %v", c.lost)
	}
}

// A server that refuses everything for a time loses no event.
func TestServerThatRefusesEverything(t *testing.T) {
	s := receive(t, httptest.NewServer)
	left := 3 * refusals
	s.answer = func(w http.ResponseWriter, _ *http.Request, got request) bool {
		if got.body.Reason == lostStart || left == 0 {
			return false
		}
		left--
		w.WriteHeader(http.StatusForbidden)
		return true
	}
	set := open(t, settings{URL: s.URL})
	ring := event.NewRing(event.DefaultSize)
	emit(ring, "a", "b")
	c, stop := run(t, set, ring)
	s.want(t, "missed start", "missed given_up", "sandbox.created a", "sandbox.created b")
	stop()
	if len(c.lost) != 0 {
		t.Errorf("lost: %v", c.lost)
	}
}

// A status that is about the credentials, the URL or the state of the server does not count as a
// refusal of the event.
func TestRefusals(t *testing.T) {
	for code, want := range map[int]bool{302: false, 400: true, 401: false, 403: true, 404: false, 413: true, 422: true,
		429: false, 500: false, 502: false, 503: false} {
		if isRefusal(statusError(code)) != want {
			t.Errorf("%d refuses an event: %v", code, !want)
		}
	}
}

// An event that the server does not accept in time is given up, and the server learns that it
// missed an event. The message that says so is never given up.
func TestGiveUp(t *testing.T) {
	s := receive(t, httptest.NewServer)
	refusals := 3
	s.answer = func(w http.ResponseWriter, _ *http.Request, got request) bool {
		poison := got.body.SandboxID == "poison"
		if got.body.Reason == lostGivenUp && refusals > 0 {
			refusals--
			poison = true
		}
		if poison {
			w.WriteHeader(http.StatusBadRequest)
		}
		return poison
	}
	set := open(t, settings{URL: s.URL})
	set.hooks[0].pace.giveUp = 1
	ring := event.NewRing(event.DefaultSize)
	emit(ring, "a", "poison", "b")
	c, stop := run(t, set, ring)
	s.want(t, "missed start", "sandbox.created a", "missed given_up", "sandbox.created b")
	stop()
	if !slices.Equal(c.lost, []string{lostGivenUp}) || c.fail != 4 {
		t.Errorf("%+v", c)
	}
}
