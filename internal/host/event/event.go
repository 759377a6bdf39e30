// Package event keeps the recent events of this host's sandboxes and snapshots for followers.
//
// Emit never waits: followers read from the ring at their own pace, and a follower that falls
// behind by more than the ring's length learns how many events it missed. A follower with an id of
// an earlier ring is notified of that. Nothing is written to disk. The emitters decide what an
// event is about.
package event

import (
	"context"
	"crypto/rand"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Kind is the kind of an event, as in the API.
type Kind string

// The kinds. Those of a sandbox, except the first and the last two, are states that it enters.
const (
	SandboxCreated   Kind = "sandbox.created" // the sandbox is running
	SandboxAdopted   Kind = "sandbox.adopted" // taken over from an earlier daemon
	SandboxRunning   Kind = "sandbox.running"
	SandboxPaused    Kind = "sandbox.paused"
	SandboxSuspended Kind = "sandbox.suspended"
	SandboxRestoring Kind = "sandbox.restoring" // the sandbox is being rolled back or resumed
	SandboxExited    Kind = "sandbox.exited"
	SandboxLabels    Kind = "sandbox.labels" // the sandbox's labels changed
	SandboxDeleted   Kind = "sandbox.deleted"

	SnapshotCreated   Kind = "snapshot.created"   // sandboxes can be forked from it
	SnapshotPersisted Kind = "snapshot.persisted" // until then it was in RAM only
	SnapshotFailed    Kind = "snapshot.failed"    // a branch that no client waited for
	SnapshotDeleted   Kind = "snapshot.deleted"
)

// Event is one event of a sandbox or snapshot. Receivers must not change it.
type Event struct {
	Seq  uint64 // 1 is the first of the ring
	Time time.Time
	Kind Kind

	Sandbox  string            // the sandbox of the event, or the one that the snapshot was branched from
	Snapshot string            // the snapshot of the event, or the one that the sandbox runs from
	Labels   map[string]string // of the sandbox; never changed in place
	Reason   string            // the operation, or how the sandbox exited, in a word
	Detail   string            // the same as text; a guest may have chosen it
}

// Ring holds the latest events. Its methods may be called concurrently, and on a nil Ring, which
// keeps nothing.
type Ring struct {
	epoch string // distinguishes its ids from those of other rings

	mu sync.Mutex
	// +checklocks:mu
	events []Event // event n is at n modulo the length
	// +checklocks:mu
	last uint64 // Seq of the latest event
	// +checklocks:mu
	first uint64 // Seq of the oldest kept event
	// +checklocks:mu
	bytes int // size of the kept events
	// +checklocks:mu
	news chan struct{} // closed at the next event
}

// DefaultSize is the number of events that a daemon keeps. Forking and killing 1000 sandboxes are
// 2000 events, of some 300 bytes each.
const DefaultSize = 4096

// maxBytes bounds the memory of a ring's events. The number of events alone does not bound it,
// because clients choose an event's labels, and guests sometimes its detail. The latest event is
// always kept.
const maxBytes = 4 << 20

// size returns the approximate memory of an event, in bytes, assuming that its map of labels is not
// shared.
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

// ID returns the id of the place after an event of this ring.
func (r *Ring) ID(seq uint64) string {
	if r == nil {
		return "0"
	}
	return r.epoch + "-" + strconv.FormatUint(seq, 10)
}

// Follower reads a ring from some place on.
type Follower struct {
	ring   *Ring
	seen   uint64 // Seq of the last event that was read or skipped
	missed bool   // the follower began at a place that the ring does not know
}

// Follow returns a follower of the events after the place that id names, or from now on if id is
// empty. If the ring does not know the place, for example because it belongs to an earlier daemon,
// Next reports that and continues with the oldest event.
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

// Place returns the id of the place after the last event that was read.
func (f *Follower) Place() string { return f.ring.ID(f.seen) }

// Next waits for the next event. If missed is true, it returns no event: events were overwritten
// before they could be read, or are not in this ring. The following Next then returns the oldest
// event. The error is that of ctx.
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

// take returns the next event, or a channel that closes when there is one.
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
