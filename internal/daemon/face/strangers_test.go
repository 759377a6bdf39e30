package face

import (
	"errors"
	"fmt"
	"testing"

	"github.com/forkd/forkd/internal/host/owner"
)

// flood sends strangers' requests to many sandboxes of an owner until all requests are refused. It
// returns the number of accepted requests.
func flood(s *Strangers, owner string) (came int) {
	for i := range 2 * manySandboxes {
		for s.Enter(fmt.Sprint(owner, i), owner) == nil {
			came++
		}
	}
	return came
}

// Strangers' requests to one owner's sandboxes leave a part of the rate for the sandboxes of other
// owners, however many sandboxes the first owner has.
func TestStrangersToOneOwnerLeaveSomeForAnother(t *testing.T) {
	const burst = 10
	s := newStrangers(1e-9, burst)
	if n := flood(s, "token:a"); n != manyOfOwner*burst {
		t.Errorf("%d came to sandboxes of one owner, want %d", n, manyOfOwner*burst)
	}
	for i := range burst {
		if err := s.Enter("b", "token:b"); err != nil {
			t.Fatalf("request %d to a sandbox of another owner: %v", i, err)
		}
	}
	if err := s.Enter("b", "token:b"); !errors.Is(err, ErrTooOften) {
		t.Errorf("more than a sandbox's burst: %v", err)
	}
}

// On a daemon without tokens, where all sandboxes have the same owner, there is no limit by owner.
func TestStrangersToAnyone(t *testing.T) {
	for _, owner := range []string{"", owner.Anyone} {
		s := newStrangers(1e-9, 10)
		if n := flood(s, owner); n != manySandboxes*10 {
			t.Errorf("owner %q: %d came, want %d", owner, n, manySandboxes*10)
		}
	}
}

// Limiters of sandboxes and owners that had no recent request are dropped.
func TestStrangersAreForgotten(t *testing.T) {
	s := newStrangers(1e9, 10)
	for i := range 3 * sweepAt {
		if err := s.Enter(fmt.Sprint(i), "token:a"); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.by) > sweepAt {
		t.Errorf("%d are remembered", len(s.by))
	}
}

// Searches are limited for each peer, and for all peers together. Searches that find a sandbox have
// a separate limit.
func TestSearchesOfPeers(t *testing.T) {
	const burst = 10
	s := newStrangers(1e-9, burst)
	search := func(peer string, finds bool) (n int) {
		for s.Search(peer) == nil {
			n++
			s.Searched(finds)
		}
		return n
	}
	for i := range 3 * peersAtOnce {
		if n := search(fmt.Sprint("finds ", i), true); n != burst/peersAtOnce {
			t.Errorf("%d searches of one peer, want %d", n, burst/peersAtOnce)
		}
	}
	came := 0
	for i := range 3 * peersAtOnce {
		came += search(fmt.Sprint("misses ", i), false)
	}
	if came != burst {
		t.Errorf("%d searches found nothing, want %d", came, burst)
	}
	s, came = newStrangers(1e-9, burst), 0
	for i := range 2 * manySandboxes * peersAtOnce {
		came += search(fmt.Sprint("finds ", i), true)
	}
	if want := manySandboxes * burst; came != want {
		t.Errorf("%d searches found a sandbox, want %d", came, want)
	}
	if err := s.Enter("a", "token:a"); err != nil {
		t.Errorf("a request that needs no search: %v", err)
	}
}

// Many peers together cannot begin more concurrent searches than the bursts for all peers allow.
func TestSearchesAtTheSameTime(t *testing.T) {
	const burst = 10
	for _, found := range []bool{false, true} {
		s := newStrangers(1e-9, burst)
		came := 0
		for i := range 3 * burst {
			if s.Search(fmt.Sprint(i)) == nil {
				came++
			}
		}
		if came != burst {
			t.Errorf("%d searches began, want %d", came, burst)
		}
		for range came {
			s.Searched(found)
		}
		if err := s.Search("another"); found != (err == nil) {
			t.Errorf("after searches that found a sandbox (%t): %v", found, err)
		}
	}
}

// The number of remembered peers is bounded, and peers that searched long ago are forgotten.
func TestPeersAreForgotten(t *testing.T) {
	s := newStrangers(1e-9, 1000)
	for i := range 2 * maxPeers {
		if s.Search(fmt.Sprint(i)) == nil { // refused when the peers without an entry have used up their share
			s.Searched(true)
		}
	}
	if len(s.peers) > maxPeers {
		t.Errorf("%d peers are remembered", len(s.peers))
	}
	if err := s.Search("a"); !errors.Is(err, ErrTooOften) {
		t.Errorf("one more peer: %v", err)
	}
	for _, l := range s.peers {
		l.SetLimit(1e9)
	}
	s.swept = s.swept.Add(-sweepEvery)
	if err := s.Search("a"); err != nil || len(s.peers) != 1 {
		t.Errorf("after a quiet time: %v, %d peers are remembered", err, len(s.peers))
	}
}
