package soak

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/test/torture/guest"
)

// The states of a sandbox that last longer than a request, with the API's names.
const (
	running   = "running"
	paused    = "paused"
	suspended = "suspended"
)

// point is a known state of a guest.
type point struct {
	guest.Instant
	files map[string]string // SHA-256 of the files in dir, by name; never changed in place
}

// points are the possible states of a guest or a snapshot. Usually there is one; after a request
// whose result is unknown there are more. They are never changed in place.
type points []point

// marked returns the possible states after a request that sets a mark. certain reports that the
// request was carried out.
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

// with returns p with a file that was written. without returns p without a file that may have been
// removed.
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

// or returns the states of both p and q.
func (p points) or(q points) points { return append(slices.Clone(p), q...) }

// check compares a guest's report about itself with p, and returns the points of p that match. An
// error means that the guest is damaged.
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

// newest reports whether fit, the matching points, contains the highest mark of p. If not, a
// request that was cut off may still set that mark.
func (p points) newest(fit points) bool {
	for _, q := range p {
		if q.Mark > fit[0].Mark {
			return false
		}
	}
	return true
}

// box is a sandbox that its client has not deleted.
type box struct {
	id    string
	born  time.Time // time just before the request that started its VM
	state string
	now   points            // its possible states
	own   points            // states that it runs from, to which a rollback without a target leads
	saved points            // its latest suspended state; empty if there is none
	line  map[string]points // branches of the sandbox

	mayBeGone bool // a rollback was cut off or failed, so the daemon may have killed it
}

// start records that a request has started the VM of b with state p. from is the time of the request.
func (b *box) start(from time.Time, p points) {
	b.born, b.state, b.now, b.own, b.mayBeGone = from, running, p, p, false
}

// family holds the objects that one client has made and not deleted. Only that client changes it.
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

// tags returns the tags of the family's snapshots, in a reproducible order.
func (f *family) tags() []string { return slices.Sorted(maps.Keys(f.snapshots)) }

// adopt makes boxes for new sandboxes.
func (f *family) adopt(list []client.Sandbox, from time.Time, p points) (boxes []*box) {
	for _, s := range list {
		b := &box{id: s.ID, line: map[string]points{}}
		b.start(from, p)
		boxes = append(boxes, b)
	}
	f.boxes = append(f.boxes, boxes...)
	return boxes
}
