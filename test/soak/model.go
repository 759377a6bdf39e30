package soak

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/test/torture/guest"
)

// States of a sandbox, with the API's names. Other states last only as long as a request.
const (
	running   = "running"
	paused    = "paused"
	suspended = "suspended"
)

// point is a state that a guest or a snapshot may have.
type point struct {
	guest.Instant
	files map[string]string // SHA-256 of the files that dir must have, by name; the map is never changed
}

// points are the possible states of a guest or a snapshot. After a request whose result is unknown,
// there is more than one possible state. A slice is never changed in place.
type points []point

// marked returns the possible states after a request that sets a mark. If certain is true, the
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

// with(name, sum) returns the states of p, each with one more file. Its counterpart, without(name),
// returns the states of p, each without the file. A state of p may lack the file already.
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

// p.or(q) returns the states of both p and q.
func (p points) or(q points) points { return append(slices.Clone(p), q...) }

// check compares a guest's report about itself with p. It returns the points of p that match. If
// the guest is damaged, it returns an error.
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

// newest(fit) reports whether fit contains the highest mark of p. If it does not, that mark belongs
// to a request that was cut off. The request may still set the mark in the guest.
func (p points) newest(fit points) bool {
	for _, q := range p {
		if q.Mark > fit[0].Mark {
			return false
		}
	}
	return true
}

// box is a sandbox that its client has not deleted yet.
type box struct {
	id    string
	born  time.Time // time just before the request that started the sandbox's VM
	state string
	now   points            // possible states of the sandbox
	own   points            // possible states of the snapshot that it runs from
	saved points            // possible states of its latest suspension; empty if there was none
	line  map[string]points // branches of the sandbox: their possible states, by tag

	mayBeGone bool   // the daemon may have killed the sandbox, because a rollback failed or was cut off
	target    points // possible states of the snapshot of that rollback; a new daemon suspends the sandbox in such a state
}

// start records that a request, sent at the given time, has started the VM of b. The parameter p
// has the possible states of b.
func (b *box) start(from time.Time, p points) {
	b.born, b.state, b.now, b.own, b.mayBeGone = from, running, p, p, false
	b.target = nil
}

// fallBack returns the possible states of a suspended sandbox whose VM has ended.
func (b *box) fallBack() points { return b.saved.or(b.target) }

// family holds the sandboxes and snapshots of one client. Only that client changes it.
type family struct {
	boxes     []*box
	snapshots map[string]points // possible states, by tag
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

// tags returns the tags of the family's snapshots, sorted so that runs can be reproduced.
func (f *family) tags() []string { return slices.Sorted(maps.Keys(f.snapshots)) }

// adopt adds new sandboxes to the family. Each may be in any of the states p.
func (f *family) adopt(list []client.Sandbox, from time.Time, p points) (boxes []*box) {
	for _, s := range list {
		b := &box{id: s.ID, line: map[string]points{}}
		b.start(from, p)
		boxes = append(boxes, b)
	}
	f.boxes = append(f.boxes, boxes...)
	return boxes
}
