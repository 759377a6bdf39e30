package soak

import (
	"context"
	"slices"
	"time"

	"github.com/forkd/forkd/client"
)

// pollPause is the pause between two checks of a condition.
const pollPause = 200 * time.Millisecond

// await calls f until f returns true. If f returns an error, the daemon is not running at the
// moment, and await tries again. After a time limit, await reports the last error.
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

// settle waits until a sandbox is in one of the given states, which the latest request may have
// caused. It reports whether the sandbox exists. If the sandbox's VM was killed, the sandbox may be
// in its latest suspended state or missing. If it was being rolled back, it may be in the state of
// the rollback's snapshot. If it is missing for another reason, this is a finding.
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
			return false, nil // the state is not final yet, or the disk is still full
		case s.State == "exited":
			why = "it has exited: " + s.ExitReason + ": " + s.ExitDetail
			return true, nil
		case slices.Contains(states, s.State):
			there = true
			w.entered(b, s.State)
			return true, nil
		case s.State == suspended && b.fallBack() != nil && w.mayBeDead(b): // a daemon has found no VM for the sandbox
			there = true
			b.now = b.fallBack()
			b.suspend()
			w.rep.Count(&w.rep.Resurrected)
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

// entered(b, state) records the state in which the daemon reported a sandbox.
func (w *worker) entered(b *box, state string) {
	if state == suspended && b.state != suspended {
		if w.mayBeDead(b) { // the sandbox may be in the state of its latest suspension, or of a rollback's snapshot
			b.now = b.now.or(b.fallBack())
		}
		b.suspend()
	}
	b.state = state
}

// mayBeDead reports whether the VM of a sandbox may have ended.
func (w *worker) mayBeDead(b *box) bool { return b.mayBeGone || w.faults.killed(b.id, b.born) }

// mourn records that a sandbox is missing or in an unexpected state. It reports whether the sandbox
// still exists.
func (w *worker) mourn(b *box, why string) bool {
	if !w.mayBeDead(b) {
		w.rep.find(&w.rep.LostSandboxes, "%s is lost: %s", b.name(), why)
		w.kill(b, "sandbox_not_found")
		return false
	}
	if b.saved == nil {
		w.rep.Count(&w.rep.EndedByFault)
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
	w.rep.Count(&w.rep.Resurrected)
	w.verify(b)
	return w.has(b)
}
