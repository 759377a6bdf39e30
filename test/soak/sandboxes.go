package soak

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/forkd/forkd/client"
)

// label is set on the children of a fork, so that they can be found if the answer is lost.
const label = "soak-fork"

// fork starts n children of a snapshot with the possible states p, and verifies them.
func (w *worker) fork(tag string, p points, n int) []*box {
	return w.forkAs(asked{op: "fork", to: fmt.Sprint(n, " of ", tag)}, client.ForkRequest{SnapshotTag: tag, N: n}, p)
}

// forkBox forks children directly from a sandbox.
func (w *worker) forkBox(b *box) {
	if len(w.own.boxes) >= w.cfg.Boxes {
		w.verify(b)
		return
	}
	w.forkAs(asked{op: "fork sandbox", box: b}, client.ForkRequest{SourceID: b.id, N: 1, Mode: w.mode()}, b.now)
	if w.has(b) {
		w.settle(b, b.state)
	}
}

func (w *worker) forkAs(a asked, req client.ForkRequest, p points) []*box {
	a.may, a.starts = append(a.may, "max_sandboxes", "busy"), true
	req.Labels = map[string]string{label: w.name()}
	from := time.Now()
	var made client.Forked
	out := w.do(a, func(ctx context.Context) (err error) {
		made, err = w.d.Fork(ctx, req)
		return err
	})
	if out != done {
		made.Sandboxes = w.forked(req, out)
	}
	boxes := w.own.adopt(made.Sandboxes, from, p)
	for _, b := range boxes {
		w.rep.Say("client %d: has %s", w.n, b.name())
		w.verify(b)
	}
	return slices.DeleteFunc(boxes, func(b *box) bool { return !w.has(b) })
}

// forked returns the children of a fork whose answer was lost or was an error. The fork must have
// made all of its children or none. If a refused fork has made children, this is a finding.
func (w *worker) forked(req client.ForkRequest, out outcome) (children []client.Sandbox) {
	var list []client.Sandbox
	w.await(func(ctx context.Context) (ready bool, err error) {
		list, _, err = w.d.SandboxPage(ctx, client.PageRequest{Labels: []string{label + "=" + req.Labels[label]}})
		return err == nil, err
	})
	if len(list) == req.N && out == unknown {
		return list
	}
	if len(list) > 0 {
		w.rep.find(&w.rep.HalfMade, "a fork of %d of %s%s that failed has left %d sandboxes", req.N, req.SnapshotTag,
			req.SourceID, len(list))
	}
	for _, s := range list {
		w.do(asked{op: "kill", id: s.ID}, func(ctx context.Context) error { return w.d.Kill(ctx, s.ID) })
	}
	return nil
}

// kill deletes a sandbox. It repeats the request until it receives an answer.
func (w *worker) kill(b *box, may ...string) {
	w.await(func(context.Context) (bool, error) {
		out := w.do(asked{op: "kill", box: b, may: may}, func(ctx context.Context) error { return w.d.Kill(ctx, b.id) })
		may = []string{"sandbox_not_found"} // an earlier attempt may have deleted the sandbox
		return out != unknown, nil
	})
	w.own.remove(b)
}

func (w *worker) pause(b *box) {
	switch w.do(asked{op: "pause", box: b}, func(ctx context.Context) error {
		_, err := w.d.Pause(ctx, b.id)
		return err
	}) {
	case done:
		b.state = paused
	case refused:
		w.settle(b, b.state)
	case unknown:
		w.settle(b, b.state, paused)
	}
}

// resume resumes a paused or suspended sandbox.
func (w *worker) resume(b *box) bool {
	from, was := time.Now(), b.state
	a := asked{op: "resume " + was, box: b, may: []string{"max_sandboxes", "busy"}, starts: was == suspended}
	out := w.do(a, func(ctx context.Context) error {
		_, err := w.d.Resume(ctx, b.id)
		return err
	})
	if was == suspended && out != refused {
		b.born = from
	}
	switch out {
	case done:
		b.state = running
	case refused:
		return w.settle(b, was) && b.state == running
	case unknown:
		return w.settle(b, was, running) && b.state == running
	}
	return true
}

// wake waits until a sandbox runs. If necessary, it resumes the sandbox.
func (w *worker) wake(b *box) bool {
	return w.await(func(context.Context) (bool, error) {
		return !w.has(b) || b.state == running || w.resume(b), nil
	}) && w.has(b)
}

func (w *worker) suspend(b *box) {
	was := b.state
	out := w.do(asked{op: "suspend", box: b, may: []string{"busy"}}, func(ctx context.Context) error {
		_, err := w.d.Suspend(ctx, b.id)
		return err
	})
	switch out {
	case done:
		b.suspend()
	case refused:
		w.settle(b, was)
	case unknown:
		w.settle(b, was, suspended)
	}
}

// suspend records that b was suspended in its present state.
func (b *box) suspend() { b.state, b.saved, b.own = suspended, b.now, b.now }

// rollback rolls a sandbox back to the snapshot that the sandbox runs from, or to a branch of the
// sandbox.
func (w *worker) rollback(b *box) {
	to, p := "", b.own
	var tags []string
	for _, tag := range w.own.tags() {
		if _, ok := b.line[tag]; ok {
			tags = append(tags, tag)
		}
	}
	if n := w.rng.IntN(len(tags) + 1); n < len(tags) {
		to, p = tags[n], b.line[tags[n]]
	}
	may := []string{"busy"}
	switch w.do(asked{op: "roll back", box: b, to: cmp.Or(to, "where it runs from"), may: may},
		func(ctx context.Context) error { _, err := w.d.Rollback(ctx, b.id, to); return err }) {
	case done:
		b.now, b.own = p, p
		w.verify(b)
	case refused:
		w.settle(b, b.state)
	case unknown:
		b.now, b.own, b.mayBeGone, b.target = b.now.or(p), b.own.or(p), true, p
		if w.settle(b, b.state) {
			b.mayBeGone, b.target = false, nil
		}
	}
}
