// Package event remembers what has lately happened to the sandboxes and snapshots of this host, for
// those who follow it.
//
// Emit never waits: whoever follows reads from the ring at a pace of its own, and one that is
// slower than the ring is long is told how many events it has missed. Nothing is written to disk; a
// new ring says so to a follower that comes with an id of an older one. What an event is about is
// decided by those who emit it.
package event

import (
	"context"
	"crypto/rand"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Kind says what happened, as the API spells it.
type Kind string

// The kinds. Those of a sandbox, but for the first and last two, are the states that it enters.
const (
	SandboxCreated   Kind = "sandbox.created" // it is running
	SandboxAdopted   Kind = "sandbox.adopted" // this daemon took it over from an earlier one
	SandboxRunning   Kind = "sandbox.running"
	SandboxPaused    Kind = "sandbox.paused"
	SandboxSuspended Kind = "sandbox.suspended"
	SandboxRestoring Kind = "sandbox.restoring" // it is being rolled back, or brought back
	SandboxExited    Kind = "sandbox.exited"
	SandboxLabels    Kind = "sandbox.labels" // it has others
	SandboxDeleted   Kind = "sandbox.deleted"

	SnapshotCreated   Kind = "snapshot.created"   // sandboxes can be forked from it
	SnapshotPersisted Kind = "snapshot.persisted" // it was in RAM only before
	SnapshotFailed    Kind = "snapshot.failed"    // nobody waited for it
	SnapshotDeleted   Kind = "snapshot.deleted"
)

// Event is one thing that happened. Who gets it does not change it.
type Event struct {
	Seq  uint64 // 1 is the first of the ring
	Time time.Time
	Kind Kind

	Sandbox  string            // that it happened to, or that the snapshot was branched from
	Snapshot string            // that it happened to, or that the sandbox runs from
	Labels   map[string]string // of the sandbox; whoever gives it others makes a new map
	Reason   string            // what was done, or how it exited, in a word
	Detail   string            // the same in words; a guest may have chosen them
}

// Ring holds the latest events. Its methods may be called concurrently, and on a nil Ring, which
// keeps nothing.
type Ring struct {
	epoch string // tells its ids from those of other rings

	mu     sync.Mutex
	events []Event       // of event n, at n modulo the length
	last   uint64        // Seq of the latest
	first  uint64        // Seq of the oldest that is kept
	bytes  int           // what those that are kept take
	news   chan struct{} // closed at the next event
}

// DefaultSize is how many events a daemon remembers. A fork of 1000 sandboxes and their end are
// 2000, at some 300 bytes each.
const DefaultSize = 4096

// maxBytes is the most memory that the events of a ring take together, whatever its length: clients
// choose their labels, and guests some of their details. The latest is kept in any case.
const maxBytes = 4 << 20

// size is about what an event takes in memory, in bytes: labels in a map of their own.
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

// Emit adds an event, whose time is now.
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
		oldest := r.at(r.first)
		r.bytes -= oldest.size()
		*oldest = Event{}
		r.first++
	}
	*r.at(e.Seq) = e
	close(r.news)
	r.news = make(chan struct{})
}

func (r *Ring) at(seq uint64) *Event { return &r.events[seq%uint64(len(r.events))] }

// ID names the place behind an event of this ring.
func (r *Ring) ID(seq uint64) string {
	if r == nil {
		return "0"
	}
	return r.epoch + "-" + strconv.FormatUint(seq, 10)
}

// Follower reads a ring from some place on.
type Follower struct {
	ring   *Ring
	seen   uint64 // Seq of the last that was read, or passed over
	missed bool   // it came with a place that the ring does not know
}

// Follow returns a follower of what happens after the place that id names, or from now on if id is
// empty. One that the ring does not know, as that of an earlier daemon, is told so by Next and goes
// on with the oldest event that there is.
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

// Place is the id behind what was read last.
func (f *Follower) Place() string { return f.ring.ID(f.seen) }

// Next waits for the next event. If missed is true, e is none: events were overwritten before they
// could be read, or never were in this ring, and Next goes on with the oldest there is. The error
// is that of ctx.
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

// take returns the next event, or how to learn of it.
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
	return *r.at(f.seen), false, nil
}
