package soak

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/test/torture/guest"
)

// The states of a sandbox that outlast a request, as the API spells them.
const (
	running   = "running"
	paused    = "paused"
	suspended = "suspended"
)

// point is a state of a guest that a client knows of.
type point struct {
	guest.Instant
	files map[string]string // in dir, and their SHA-256; never changed in place
}

// points are the states that something may be in: one, but after a request of which nobody knows
// what became. They are never changed in place.
type points []point

// marked returns what p may be after a request that sets a mark was carried out, or else may have
// been.
func (p points) marked(mark, seq uint64, certain bool) points {
	next := make(points, 0, 2*len(p))
	for _, was := range p {
		next = append(next, point{guest.Instant{Mark: mark, Seq: max(was.Seq, seq)}, was.files})
	}
	if !certain {
		next = append(next, p...)
	}
	return next
}

// with returns p with a file that has been written; without one that may have been removed.
func (p points) with(name, sum string) points {
	next := slices.Clone(p)
	for i := range next {
		next[i].files = maps.Clone(next[i].files)
		if next[i].files == nil {
			next[i].files = map[string]string{}
		}
		next[i].files[name] = sum
	}
	return next
}

func (p points) without(name string) points {
	next := slices.Clone(p)
	for i := range next {
		next[i].files = maps.Clone(next[i].files)
		delete(next[i].files, name)
	}
	return next
}

// or returns what may be in one of two states.
func (p points) or(q points) points { return append(slices.Clone(p), q...) }

// check compares what a guest has found out about itself with p, and returns those of p that it can
// be. An error is damage.
func (p points) check(r *guest.Report, size guest.Size) (points, error) {
	if err := r.Damage(); err != nil {
		return nil, err
	}
	var fit points
	first := error(nil)
	for _, want := range p {
		err := r.Check(want.Instant, size)
		if err != nil {
			if first == nil {
				first = err
			}
			continue
		}
		want.Seq = r.Seq
		fit = append(fit, want)
	}
	if len(fit) == 0 {
		return nil, fmt.Errorf("%w (of %d states that it may be in)", first, len(p))
	}
	return fit, nil
}

// newest reports whether a guest that fits has the highest mark of p. A request that was cut off
// may still set that in any other.
func (p points) newest(fit points) bool {
	for _, q := range p {
		if q.Mark > fit[0].Mark {
			return false
		}
	}
	return true
}

// box is a sandbox that its client was told of and has not deleted.
type box struct {
	id    string
	born  time.Time // before the request that started its VM
	state string
	now   points            // what it holds
	own   points            // what it runs from: where a rollback without a target leads
	saved points            // its latest suspended state; nil: none
	line  map[string]points // branches that were made of it

	mayBeGone bool // a rollback was cut off or failed: the daemon may have ended it
}

// start notes that the VM of b was started by a request that was made at from, to hold p.
func (b *box) start(from time.Time, p points) {
	b.born, b.state, b.now, b.own, b.mayBeGone = from, running, p, p, false
}

// family is what one client has made and not deleted. Only its client changes it.
type family struct {
	boxes     []*box
	snapshots map[string]points // by tag
}

func (f *family) remove(b *box) {
	f.boxes = slices.DeleteFunc(f.boxes, func(x *box) bool { return x == b })
}

func (f *family) forget(tag string) {
	delete(f.snapshots, tag)
	for _, b := range f.boxes {
		delete(b.line, tag)
	}
}

// tags returns the tags of its snapshots in an order that depends on nothing else.
func (f *family) tags() []string { return slices.Sorted(maps.Keys(f.snapshots)) }

// adopt makes boxes of new sandboxes.
func (f *family) adopt(list []client.Sandbox, from time.Time, p points) (boxes []*box) {
	for _, s := range list {
		b := &box{id: s.ID, line: map[string]points{}}
		b.start(from, p)
		boxes = append(boxes, b)
	}
	f.boxes = append(f.boxes, boxes...)
	return boxes
}
