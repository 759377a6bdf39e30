package soak

import (
	"context"
	"slices"
	"time"

	"github.com/forkd/forkd/client"
)

// pollPause is between two looks at what is not as it will be.
const pollPause = 200 * time.Millisecond

// await calls f until it is ready. Its errors are those of a daemon that is not there at the
// moment, or not yet.
func (w *worker) await(f func(ctx context.Context) (ready bool, err error)) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 2*stepLimit)
	defer cancel()
	var last error
	for {
		ready, err := f(ctx)
		if ready {
			return true
		}
		if err != nil {
			last = err
		}
		select {
		case <-ctx.Done():
			w.rep.find(&w.rep.Unexpected, "client %d waited %v for nothing; the last error: %v", w.n, 2*stepLimit, last)
			return false
		case <-time.After(pollPause):
		}
	}
}

// settle waits until a sandbox is in one of the states that it may be in after what was last done
// to it, and returns whether it is there. One whose VM was killed comes back as it was when it was
// last suspended, or is gone. One that is missing for no reason is lost.
func (w *worker) settle(b *box, states ...string) bool {
	there, why := false, ""
	ok := w.await(func(ctx context.Context) (bool, error) {
		s, err := w.d.Sandbox(ctx, b.id)
		switch {
		case client.IsNotFound(err):
			why = "there is no such sandbox"
			return true, nil
		case err != nil:
			return false, err
		case slices.Contains([]string{"starting", "restoring", "stopping"}, s.State), s.NotAnswering, s.DiskFull:
			return false, nil // until it is known, or the disk has room
		case s.State == "exited":
			why = "it has exited: " + s.ExitReason + ": " + s.ExitDetail
			return true, nil
		case slices.Contains(states, s.State):
			there = true
			w.entered(b, s.State)
			return true, nil
		case s.State == suspended && b.saved != nil && w.mayBeDead(b): // by a daemon that found no VM
			there = true
			b.now = b.saved
			b.suspend()
			w.rep.count(&w.rep.Resurrected)
			return true, nil
		}
		why = "it is " + s.State
		return true, nil
	})
	if there || !ok {
		return there
	}
	return w.mourn(b, why)
}

// entered notes the state that a sandbox has been found in.
func (w *worker) entered(b *box, state string) {
	if state == suspended && b.state != suspended {
		if b.saved != nil && w.mayBeDead(b) { // now, or again
			b.now = b.now.or(b.saved)
		}
		b.suspend()
	}
	b.state = state
}

// mayBeDead reports whether the VM of a sandbox may have ended.
func (w *worker) mayBeDead(b *box) bool { return b.mayBeGone || w.faults.killed(b.id, b.born) }

// mourn deals with a sandbox that is not as it should be, and reports whether it is back.
func (w *worker) mourn(b *box, why string) bool {
	if !w.mayBeDead(b) {
		w.rep.find(&w.rep.LostSandboxes, "%s is lost: %s", b.name(), why)
		w.kill(b, "sandbox_not_found")
		return false
	}
	if b.saved == nil {
		w.rep.count(&w.rep.EndedByFault)
		w.kill(b, "sandbox_not_found")
		return false
	}
	from := time.Now()
	back := w.await(func(ctx context.Context) (bool, error) {
		s, err := w.d.Resume(ctx, b.id)
		if client.IsNotFound(err) {
			return true, nil
		}
		return err == nil && s.State == running, err
	})
	if _, err := w.d.Sandbox(context.Background(), b.id); !back || client.IsNotFound(err) {
		w.rep.find(&w.rep.LostSandboxes, "%s is lost with its suspended state: %s", b.name(), why)
		w.own.remove(b)
		return false
	}
	b.start(from, b.saved)
	w.rep.count(&w.rep.Resurrected)
	w.verify(b)
	return w.has(b)
}
