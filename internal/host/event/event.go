// Package event stores the recent events of this host's sandboxes and snapshots, in a ring.
// Followers read the events, each at its own pace.
//
// Emit never waits for followers. A follower that falls behind by more than the ring's length
// learns that it missed events. A follower that begins at an id of another ring, for example of an
// earlier daemon, learns the same. Nothing is written to disk. The callers of Emit decide what an
// event contains.
package event

import (
	"context"
	"crypto/rand"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Kind is the kind of an event, with the names of the API.
type Kind string

// Kinds. Those of a sandbox, except the first and the last two, are states that the sandbox enters.
const (
	SandboxCreated   Kind = "sandbox.created" // the sandbox is running
	SandboxAdopted   Kind = "sandbox.adopted" // the sandbox was taken over from an earlier daemon
	SandboxRunning   Kind = "sandbox.running"
	SandboxPaused    Kind = "sandbox.paused"
	SandboxSuspended Kind = "sandbox.suspended"
	SandboxRestoring Kind = "sandbox.restoring" // the sandbox is being rolled back or resumed
	SandboxExited    Kind = "sandbox.exited"
	SandboxLabels    Kind = "sandbox.labels" // the sandbox's labels changed
	SandboxDeleted   Kind = "sandbox.deleted"

	SnapshotCreated   Kind = "snapshot.created"   // sandboxes can be forked from it
	SnapshotPersisted Kind = "snapshot.persisted" // it is on disk; before that it was only in RAM
	SnapshotFailed    Kind = "snapshot.failed"    // a branch failed for which no client waited
	SnapshotDeleted   Kind = "snapshot.deleted"
)

// Event is one event of a sandbox or a snapshot. Receivers must not change it.
type Event struct {
	Seq  uint64 // number of the event in its ring, from 1
	Time time.Time
	Kind Kind

	Sandbox  string            // sandbox of the event; for a snapshot, the sandbox that it was branched from
	Snapshot string            // snapshot of the event; for a sandbox, the snapshot that it runs from
	Labels   map[string]string // labels of the sandbox; the map is never changed
	Reason   string            // one word: the operation, or how the sandbox exited
	Detail   string            // Reason in more words, which a guest may have chosen
}

// Ring stores the latest events. Its methods may be called concurrently. A nil Ring stores nothing.
type Ring struct {
	epoch string // distinguishes the ids of this ring from those of other rings

	mu sync.Mutex
	// +checklocks:mu
	events []Event // the event with number n is at index n modulo the length
	// +checklocks:mu
	last uint64 // Seq of the latest event
	// +checklocks:mu
	first uint64 // Seq of the oldest stored event
	// +checklocks:mu
	bytes int // size of the stored events
	// +checklocks:mu
	news chan struct{} // closed when the next event is emitted
}

// DefaultSize is the number of events that a daemon stores. Forking and killing 1000 sandboxes
// makes 2000 events, of some 300 bytes each.
const DefaultSize = 4096

// maxBytes bounds the memory of a ring's events. The number of events is not a sufficient bound,
// because clients choose an event's labels, and guests sometimes its Detail. The latest event is
// stored in any case.
const maxBytes = 4 << 20

// size returns the approximate memory of an event in bytes, if no other event shares its map of
// labels.
func (e *Event) size() int {
	const event, label = 160, 64
	n := event + len(e.Sandbox) + len(e.Snapshot) + len(e.Reason) + len(e.Detail)
	for name, value := range e.Labels {
		n += label + len(name) + len(value)
	}
	return n
}

// NewRing returns an empty ring that holds size events.
func NewRing(size int) *Ring {
	return &Ring{epoch: strings.ToLower(rand.Text()[:12]), events: make([]Event, size), first: 1,
		news: make(chan struct{})}
}

// Emit adds an event with the present time.
func (r *Ring) Emit(e Event) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	e.Seq, e.Time = r.last, time.Now().UTC()
	r.bytes += e.size()
	for r.first < e.Seq && (r.bytes > maxBytes || e.Seq-r.first == uint64(len(r.events))) {
		oldest := r.atLocked(r.first)
		r.bytes -= oldest.size()
		*oldest = Event{}
		r.first++
	}
	*r.atLocked(e.Seq) = e
	close(r.news)
	r.news = make(chan struct{})
}

// +checklocks:r.mu
func (r *Ring) atLocked(seq uint64) *Event { return &r.events[seq%uint64(len(r.events))] }

// ID returns an id for the place after the event with number seq. A client can pass it to Follow.
func (r *Ring) ID(seq uint64) string {
	if r == nil {
		return "0"
	}
	return r.epoch + "-" + strconv.FormatUint(seq, 10)
}

// Follower reads the events of a ring in order, beginning at some place.
type Follower struct {
	ring   *Ring
	seen   uint64 // number of the last event that was read or skipped
	missed bool   // the ring does not know the place at which the follower began
}

// Follow returns a follower of the events after the place that id names. If id is empty, it follows
// the events from now on. If the ring does not know the place, for example because the id is an
// earlier daemon's, Next reports missed events and continues with the oldest event.
func (r *Ring) Follow(id string) *Follower {
	f := &Follower{ring: r}
	if r == nil {
		return f
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if id == "" {
		f.seen = r.last
		return f
	}
	number, ours := strings.CutPrefix(id, r.epoch+"-")
	seq, err := strconv.ParseUint(number, 10, 64)
	if !ours || err != nil || seq > r.last {
		f.missed = true
		return f
	}
	f.seen = seq
	return f
}

// Place returns the id of the place after the last event that Next returned.
func (f *Follower) Place() string { return f.ring.ID(f.seen) }

// Next waits for the next event and returns it. If missed is true, it returns no event: events were
// overwritten before they could be read, or the follower began at an unknown place. The Next after
// that returns the oldest stored event. The error is that of ctx.
func (f *Follower) Next(ctx context.Context) (e Event, missed bool, err error) {
	if f.ring == nil {
		<-ctx.Done()
		return e, false, ctx.Err()
	}
	for {
		e, missed, news := f.take()
		if news == nil {
			return e, missed, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return e, false, ctx.Err()
		}
	}
}

// take returns the next event. If there is none, it returns a channel that is closed when there is
// one.
func (f *Follower) take() (e Event, missed bool, news <-chan struct{}) {
	r := f.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	if before := r.first - 1; f.seen < before || f.missed {
		f.seen, f.missed = before, false
		return e, true, nil
	}
	if f.seen == r.last {
		return e, false, r.news
	}
	f.seen++
	return *r.atLocked(f.seen), false, nil
}
