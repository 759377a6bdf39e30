// Package event stores the recent events of this host's sandboxes and snapshots, in a ring.
// Followers read the events, each at its own pace.
//
// Emit never waits for followers. If the ring is full, Emit drops the oldest event of the owner
// with the most events, so no owner can displace the events of others. If events are dropped before
// a follower has read them, the follower learns that it missed events. The same happens to a
// follower that begins at an id of another ring, for example that of an earlier daemon. Nothing is
// written to disk. The callers of Emit decide what an event contains.
package event

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Kind is the kind of an event. Its values are names of the API.
type Kind string

// Kinds of events. SandboxRunning, SandboxPaused, SandboxSuspended, SandboxRestoring and
// SandboxExited mean that the sandbox has entered the state of the same name.
const (
	SandboxCreated   Kind = "sandbox.created" // the sandbox is running
	SandboxAdopted   Kind = "sandbox.adopted" // the sandbox was taken over from an earlier daemon
	SandboxRunning   Kind = "sandbox.running"
	SandboxPaused    Kind = "sandbox.paused"
	SandboxSuspended Kind = "sandbox.suspended"
	SandboxRestoring Kind = "sandbox.restoring" // the sandbox is being rolled back or resumed
	SandboxExited    Kind = "sandbox.exited"
	SandboxLabels    Kind = "sandbox.labels"      // the sandbox's labels changed
	SandboxHook      Kind = "sandbox.hook_failed" // a hook failed, and the operation continued
	SandboxDeleted   Kind = "sandbox.deleted"

	SnapshotCreated   Kind = "snapshot.created"   // sandboxes can be forked from the snapshot
	SnapshotPersisted Kind = "snapshot.persisted" // the snapshot is on disk; before, it was only in RAM
	SnapshotFailed    Kind = "snapshot.failed"    // a branch that no client waited for has failed
	SnapshotDeleted   Kind = "snapshot.deleted"
)

// IsKnown reports whether a kind is one of the constants.
func (k Kind) IsKnown() bool {
	switch k {
	case SandboxCreated, SandboxAdopted, SandboxRunning, SandboxPaused, SandboxSuspended, SandboxRestoring,
		SandboxExited, SandboxLabels, SandboxHook, SandboxDeleted,
		SnapshotCreated, SnapshotPersisted, SnapshotFailed, SnapshotDeleted:
		return true
	}
	return false
}

// Event is one event of a sandbox or a snapshot. Receivers must not change it.
type Event struct {
	Seq  uint64 // number of the event in its ring; the first event has number 1
	Time time.Time
	Kind Kind

	Owner    string            // owner of the sandbox or snapshot; empty if unknown
	Sandbox  string            // sandbox of the event; for a snapshot, the sandbox that it was branched from
	Snapshot string            // snapshot of the event; for a sandbox, the snapshot that it runs from
	Labels   map[string]string // labels of the sandbox; the map is never changed
	Reason   string            // one word: the operation, or how the sandbox exited
	Detail   string            // Reason in more words, which a guest may have chosen
}

// Ring stores the latest events. Its methods may be called concurrently. A nil Ring stores nothing.
type Ring struct {
	epoch string // distinguishes the ids of this ring from those of other rings
	size  int    // maximum number of events

	mu sync.Mutex
	// +checklocks:mu
	owners map[string]*queue // events by owner; no queue is empty
	// +checklocks:mu
	last uint64 // Seq of the latest event
	// +checklocks:mu
	dropped uint64 // highest Seq of the events that were dropped
	// +checklocks:mu
	total use // sum over all owners
	// +checklocks:mu
	news chan struct{} // closed when the next event is emitted
}

// use counts the stored events, and the bytes of memory that they take.
type use struct{ events, bytes int }

// queue has the stored events of one owner.
type queue struct {
	use
	list []Event // oldest first
}

// DefaultSize is the number of events that a daemon stores. Forking and killing 1000 sandboxes
// makes 2000 events, of some 300 bytes each.
const DefaultSize = 4096

// maxBytes is the maximum memory of a ring's events, in bytes. The number of events alone is not a
// sufficient bound, because clients choose an event's labels, and guests sometimes choose its
// Detail. The latest event is always stored, whatever its size.
const maxBytes = 4 << 20

// size returns the approximate memory of an event in bytes, assuming that no other event shares its
// map of labels.
func (e *Event) size() int {
	const event, label = 160, 64
	n := event + len(e.Sandbox) + len(e.Snapshot) + len(e.Reason) + len(e.Detail)
	for name, value := range e.Labels {
		n += label + len(name) + len(value)
	}
	return n
}

// NewRing returns an empty ring with room for the given number of events.
func NewRing(size int) *Ring {
	return &Ring{epoch: strings.ToLower(rand.Text()[:12]), size: size, owners: make(map[string]*queue),
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
	q := r.owners[e.Owner]
	if q == nil {
		q = &queue{}
		r.owners[e.Owner] = q
	}
	q.list = append(q.list, e)
	r.addLocked(q, 1, e.size())
	for r.total.events > 1 && (r.total.events > r.size || r.total.bytes > maxBytes) {
		r.dropLocked()
	}
	close(r.news)
	r.news = make(chan struct{})
}

// +checklocks:r.mu
func (r *Ring) addLocked(q *queue, events, bytes int) {
	for _, u := range []*use{&q.use, &r.total} {
		u.events += events
		u.bytes += bytes
	}
}

// dropLocked drops the oldest event of one owner. It chooses the owner with the most bytes if the
// ring has too many bytes, and otherwise the owner with the most events. dropLocked does not drop
// the latest event of the ring.
//
// +checklocks:r.mu
func (r *Ring) dropLocked() {
	var most *queue
	var name string
	for owner, q := range r.owners {
		more := most == nil || q.events > most.events
		if most != nil && r.total.bytes > maxBytes {
			more = q.bytes > most.bytes
		}
		if more && q.list[0].Seq != r.last {
			most, name = q, owner
		}
	}
	r.addLocked(most, -1, -most.list[0].size())
	r.dropped = max(r.dropped, most.list[0].Seq)
	most.list[0] = Event{}
	most.list = most.list[1:]
	if len(most.list) == 0 {
		delete(r.owners, name)
	}
}

// afterLocked returns the first stored event whose number is above seq, or nil.
//
// +checklocks:r.mu
func (r *Ring) afterLocked(seq uint64) (first *Event) {
	for _, q := range r.owners {
		n, _ := slices.BinarySearchFunc(q.list, seq+1, func(e Event, want uint64) int { return cmp.Compare(e.Seq, want) })
		if n < len(q.list) && (first == nil || q.list[n].Seq < first.Seq) {
			first = &q.list[n]
		}
	}
	return first
}

// ID returns an id for the place after the event with the number seq. Follow accepts such an id.
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
	told   uint64 // value of Ring.dropped when Next last reported missed events
	missed bool   // the ring does not know the place at which the follower began
}

// Follow returns a follower of the events after the place with the given id. If id is empty, the
// follower begins at the present. If the ring does not know the place, for example because the id
// comes from an earlier daemon, Next reports missed events and continues with the oldest event.
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

// Next waits for the next event and returns it. If missed is true, there is no event: events were
// dropped before they could be read, or the follower began at an unknown place. The next call then
// returns the oldest stored event that was not read. If ctx ends, Next returns the error of ctx.
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

// take returns the next event. If there is no next event yet, it returns a channel that is closed
// when there is one.
func (f *Follower) take() (e Event, missed bool, news <-chan struct{}) {
	r := f.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.afterLocked(f.seen)
	if f.missed || f.seen < r.dropped && f.told < r.dropped {
		f.told, f.missed = r.dropped, false
		if next != nil {
			f.seen = next.Seq - 1
		}
		return e, true, nil
	}
	if next == nil {
		return e, false, r.news
	}
	f.seen = next.Seq
	return *next, false, nil
}
