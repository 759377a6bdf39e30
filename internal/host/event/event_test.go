package event

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// next reads an event that the ring already has.
func next(t *testing.T, f *Follower) (Event, bool) {
	t.Helper()
	e, missed, err := f.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return e, missed
}

func TestFollow(t *testing.T) {
	r := NewRing(8)
	r.Emit(Event{Kind: SandboxCreated, Sandbox: "before"})
	f := r.Follow("")
	for i := range 3 {
		r.Emit(Event{Kind: SandboxPaused, Sandbox: fmt.Sprint(i)})
	}
	for i := range 3 {
		if e, missed := next(t, f); missed || e.Sandbox != fmt.Sprint(i) || e.Seq != uint64(i)+2 || e.Time.IsZero() {
			t.Errorf("event %d: %+v, %v", i, e, missed)
		}
	}
	again := r.Follow(r.ID(2))
	if e, missed := next(t, again); missed || e.Seq != 3 || again.Place() != r.ID(3) {
		t.Errorf("after 2: %+v, %v, then at %s", e, missed, again.Place())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := f.Next(ctx); err == nil {
		t.Error("there is an event too many")
	}
}

// A follower that is too slow, or that continues from an id of another daemon, learns once that it
// missed events. Then it receives the events that are still stored.
func TestMissed(t *testing.T) {
	r := NewRing(4)
	slow, other := r.Follow(""), NewRing(4)
	other.Emit(Event{})
	for range 6 {
		r.Emit(Event{})
	}
	for name, f := range map[string]*Follower{
		"slow": slow, "of another ring": r.Follow(other.ID(1)), "of the future": r.Follow(r.ID(7)),
		"malformed":    r.Follow("x"),
		"empty number": r.Follow(r.epoch + "-"),
	} {
		if e, missed := next(t, f); !missed || e.Seq != 0 {
			t.Errorf("%s: %+v, %v; want to be told", name, e, missed)
		}
		for want := uint64(3); want <= 6; want++ {
			if e, missed := next(t, f); missed || e.Seq != want {
				t.Errorf("%s: %+v, %v, want event %d", name, e, missed, want)
			}
		}
	}
}

// A large event displaces as many older events as needed, so the memory of a ring is bounded. An
// event that alone exceeds the bound is stored until the next event arrives.
func TestRingIsBoundedInBytes(t *testing.T) {
	r := NewRing(DefaultSize)
	all := r.Follow("")
	label := map[string]string{"a": strings.Repeat("x", 10<<10)}
	const many = 2 * DefaultSize
	for range many {
		r.Emit(Event{Kind: SandboxLabels, Labels: label})
	}
	if _, missed := next(t, all); !missed {
		t.Error("who was too slow is not told")
	}
	kept := 0
	for all.Place() != r.ID(many) {
		e, missed := next(t, all)
		if kept++; missed || len(e.Labels) != 1 {
			t.Fatalf("%+v, %v", e, missed)
		}
	}
	if most := maxBytes / (10 << 10); kept > most || kept < most*9/10 {
		t.Errorf("%d events of 10 KiB are kept", kept)
	}
	held := 0
	r.mu.Lock()
	for _, q := range r.owners {
		for _, e := range q.list[:cap(q.list)] {
			if e.Seq != 0 {
				held++
			}
		}
	}
	r.mu.Unlock()
	if held != kept {
		t.Errorf("%d events are in memory, %d of them can be read", held, kept)
	}

	r.Emit(Event{Detail: strings.Repeat("x", maxBytes+1)})
	r.Emit(Event{Sandbox: "last"})
	if e, missed := next(t, r.Follow(r.ID(many+1))); missed || e.Sandbox != "last" {
		t.Errorf("after one that is too large: %+v, %v", e.Sandbox, missed)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.total.bytes > maxBytes {
		t.Errorf("%d bytes are kept", r.total.bytes)
	}
}

// An owner with many or large events displaces its own events, and not the events of other owners.
func TestOwnersHaveAShareOfTheRing(t *testing.T) {
	for name, e := range map[string]Event{
		"many":  {Owner: "noisy"},
		"large": {Owner: "noisy", Labels: map[string]string{"a": strings.Repeat("x", 8<<10)}},
	} {
		r := NewRing(DefaultSize)
		for range 100 {
			r.Emit(Event{Owner: "quiet", Sandbox: "mine"})
			r.Emit(Event{Sandbox: "mine"}) // without an owner
		}
		slow, fast := r.Follow(r.ID(0)), r.Follow("")
		for range 2 * DefaultSize {
			r.Emit(e)
			if next, missed := next(t, fast); missed || next.Owner != "noisy" {
				t.Fatalf("%s: a follower that reads all: %+v, %v", name, next, missed)
			}
		}
		if _, missed := next(t, slow); !missed {
			t.Errorf("%s: a follower that reads late does not learn what it has missed", name)
		}
		r.mu.Lock()
		last, owners := r.ID(r.last), len(r.owners)
		r.mu.Unlock()
		mine := 0
		for slow.Place() != last {
			e, missed := next(t, slow)
			if missed {
				t.Fatalf("%s: it is told twice", name)
			}
			if e.Sandbox == "mine" {
				mine++
			}
		}
		if mine != 200 {
			t.Errorf("%s: %d of 200 events of others are left", name, mine)
		}
		if owners != 3 {
			t.Errorf("%s: %d owners", name, owners)
		}
	}
}

// All followers receive all events, in the same order.
func TestConcurrently(t *testing.T) {
	const emitters, each = 4, 100
	r := NewRing(emitters * each)
	var followers, emitting sync.WaitGroup
	for range 3 {
		f := r.Follow("")
		followers.Go(func() {
			for want := uint64(1); want <= emitters*each; want++ {
				if e, missed, err := f.Next(t.Context()); err != nil || missed || e.Seq != want {
					t.Errorf("%+v, %v, %v; want event %d", e, missed, err, want)
					return
				}
			}
		})
	}
	for range emitters {
		emitting.Go(func() {
			for range each {
				r.Emit(Event{})
			}
		})
	}
	emitting.Wait()
	followers.Wait()
}

func TestNilRing(t *testing.T) {
	var r *Ring
	r.Emit(Event{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := r.Follow("x").Next(ctx); err == nil {
		t.Error("no ring has an event")
	}
}

// IsKnown knows all kinds that this package defines.
func TestKinds(t *testing.T) {
	source, err := os.ReadFile("event.go")
	if err != nil {
		t.Fatal(err)
	}
	kinds := regexp.MustCompile(`Kind += "([^"]+)"`).FindAllSubmatch(source, -1)
	if len(kinds) < 10 {
		t.Fatalf("%d kinds", len(kinds))
	}
	for _, k := range kinds {
		if !Kind(k[1]).IsKnown() {
			t.Errorf("%s is unknown", k[1])
		}
	}
	if Kind("missed").IsKnown() || Kind("").IsKnown() {
		t.Error("a kind is known that no event has")
	}
}
