package integration_test

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/forkd/forkd/client"
)

// plain makes one branch of a running or a paused source, and verifies the source and a child of
// the branch.
func (x *fire) plain() {
	p, tag, mode := x.mark(x.source.ID, x.hot()...), x.newTag(), x.mode()
	var s client.Snapshot
	branch := func() {
		var err error
		s, err = x.branch(x.source.ID, tag, client.BranchRequest{Mode: mode, ParentTag: x.parentTag(mode)})
		x.fail(err)
	}
	if x.rng.IntN(4) == 0 {
		x.still(branch)
	} else {
		branch()
	}
	x.took(s, p)
	x.verifyMarked()
	x.still(func() { x.check(tag) })
	x.latest(tag)
}

// parentTag decides at random whether a branch request names the source's snapshot. It returns the
// tag, or "".
func (x *fire) parentTag(mode string) string {
	if mode == "full" || x.rng.IntN(2) == 0 {
		return ""
	}
	return x.source.SnapshotTag
}

// early() forks children from a live branch as early as possible, while the branch is being copied
// and flushed and the source writes.
func (x *fire) early() {
	p, tag := x.mark(x.source.ID, x.hot()...), x.newTag()
	_, err := x.branch(x.source.ID, tag, client.BranchRequest{Mode: "live", NoWait: true})
	x.fail(err)
	next := x.mark(x.source.ID) // the children must not contain later writes
	list, err := x.forkWritten(tag)
	x.fail(err)
	d, err := x.d.Snapshot(x.d.ctx(x.t, stepLimit), tag)
	x.fail(err)
	if d.Status != "ready" || d.Persist == "failed" {
		x.t.Fatalf("snapshot that children run from: %+v", d)
	}
	x.branched(d.Snapshot)
	x.took(d.Snapshot, p)
	x.still(func() { x.fail(x.verifyChildren(list, p)) })
	x.verifySource(next)
	x.latest(tag)
}

// forkWritten forks from a snapshot as soon as it is complete.
func (x *fire) forkWritten(tag string) ([]client.Sandbox, error) {
	for deadline := time.Now().Add(stepLimit); ; time.Sleep(5 * time.Millisecond) {
		list, err := x.forkN(client.ForkRequest{SnapshotTag: tag, N: 1})
		if err == nil || !client.IsStatus(err, 409) || time.Now().After(deadline) {
			return list, err
		}
	}
}

// race makes two branches of one source concurrently, while children fork from the snapshot that
// the source runs from.
func (x *fire) race() {
	p := x.mark(x.source.ID, x.hot()...)
	var group sync.WaitGroup
	var errs [3]error
	var made [2]client.Snapshot
	for i := range made {
		tag, mode, delay := x.newTag(), x.mode(), x.millis(100)
		group.Go(func() {
			time.Sleep(delay)
			made[i], errs[i] = x.branch(x.source.ID, tag, client.BranchRequest{Mode: mode})
		})
	}
	crowd := x.source.SnapshotTag
	var children []client.Sandbox
	group.Go(func() { children, errs[2] = x.forkN(client.ForkRequest{SnapshotTag: crowd, N: 2}) })
	group.Wait()
	x.fail(errors.Join(errs[:]...))
	for _, s := range made {
		x.took(s, p)
	}
	x.still(func() {
		x.fail(x.verifyChildren(children, x.points[crowd]))
		x.check(made[0].Tag)
		x.check(made[1].Tag)
	})
	x.verifyMarked()
	keep := x.rng.IntN(2)
	x.delete(made[1-keep].Tag, client.DeleteOptions{})
	x.latest(made[keep].Tag)
}

// descend replaces the source with a child.
func (x *fire) descend() {
	p, tag, mode := x.mark(x.source.ID, x.hot()...), x.newTag(), "live"
	if x.rng.IntN(3) == 0 {
		mode = "diff"
	}
	s, err := x.branch(x.source.ID, tag, client.BranchRequest{Mode: mode})
	x.fail(err)
	x.took(s, p)
	// The child may be more than one layer deeper, if the source runs from one of the source's own
	// branches.
	if x.points[tag].depth <= x.own.depth {
		x.t.Fatalf("branch %s has depth %d, its source runs from depth %d", tag, x.points[tag].depth, x.own.depth)
	}
	x.verifyMarked()
	x.latest(tag)
	x.replace()
}

// replace kills the source. A child of its latest snapshot becomes the new source, and is verified.
func (x *fire) replace() {
	x.d.kill(x.t, x.source)
	x.source, x.own, x.saved = x.fork(x.last), x.points[x.last], nil
	x.fail(x.verifyCopy(x.source.ID, x.own))
	x.report.Count(&x.report.ChildrenVerified)
}

// rollback rolls the running source back to an earlier snapshot, twice, and verifies the source
// each time. Then it branches the source.
func (x *fire) rollback() {
	to, want := "", x.own
	if n := x.rng.IntN(8); n < 5 {
		to, want = x.last, x.points[x.last]
	} else if n == 7 {
		to, want = baseTag, x.points[baseTag]
	}
	for range 2 {
		x.mark(x.source.ID)
		r, err := x.d.Rollback(x.d.ctx(x.t, stepLimit), x.source.ID, to)
		x.fail(err)
		if r.ID != x.source.ID || r.PID != x.source.PID || r.State != "running" || to != "" && r.SnapshotTag != to {
			x.t.Fatalf("rolled back to %q: %+v", to, r)
		}
		x.source, x.own = r.Sandbox, want
		x.report.Count(&x.report.Rollbacks)
		x.fail(x.verifyCopy(x.source.ID, want))
		x.report.Count(&x.report.SourcesVerified)
	}
	if to != "" {
		x.last = to
	}
	x.plain()
}

// promote promotes a child into the source while the child writes, and verifies both. In half of
// all cases the source is paused before the promotion, which must also end the pause.
func (x *fire) promote() {
	child := x.fork(x.last)
	p, tag, mode := x.mark(child.ID, x.hot()...), x.newTag(), x.mode()
	if x.rng.IntN(2) == 0 {
		_, err := x.d.Pause(x.d.ctx(x.t, stepLimit), x.source.ID)
		x.fail(err)
	}
	r, err := x.d.Promote(x.d.ctx(x.t, stepLimit), x.source.ID,
		client.PromoteRequest{From: child.ID, Tag: tag, Mode: mode})
	x.fail(err)
	if r.ID != x.source.ID || r.PID != x.source.PID || r.State != "running" || r.SnapshotTag != tag {
		x.t.Fatalf("promoted: %+v", r)
	}
	made, err := x.d.Snapshot(x.d.ctx(x.t, stepLimit), tag)
	x.fail(err)
	x.branched(made.Snapshot)
	x.took(made.Snapshot, p)
	x.source, x.own = r.Sandbox, x.points[tag]
	x.report.Count(&x.report.Rollbacks)
	x.verifySource(p)
	x.still(func() { x.fail(x.verifyCopy(child.ID, p)) })
	x.d.kill(x.t, child)
	x.last = tag // the former snapshot stays, because this snapshot builds on it
	x.plain()
}

// forkSource forks children directly from the source. The fork makes a snapshot, which is deleted
// when the last child is deleted.
func (x *fire) forkSource() {
	p, mode := x.mark(x.source.ID, x.hot()...), x.mode()
	list, err := x.forkN(client.ForkRequest{SourceID: x.source.ID, N: 2, Mode: mode})
	x.fail(err)
	x.branched(client.Snapshot{Mode: mode})
	between := list[0].SnapshotTag
	x.still(func() { x.fail(x.verifyChildren(list, p)) })
	x.verifyMarked()
	eventually(x.t, quietLimit, func() error {
		if _, err := x.d.Snapshot(x.d.ctx(x.t, stepLimit), between); !client.IsNotFound(err) {
			return fmt.Errorf("snapshot %s without sandboxes: %v", between, err)
		}
		return nil
	})
}

// suspend suspends and resumes the source, sometimes under another daemon, and verifies the source.
// Later rounds may roll it back to its suspended state.
func (x *fire) suspend() {
	p := x.mark(x.source.ID)
	if x.rng.IntN(3) == 0 {
		_, err := x.d.Pause(x.d.ctx(x.t, stepLimit), x.source.ID)
		x.fail(err)
	}
	s, err := x.d.Suspend(x.d.ctx(x.t, stepLimit), x.source.ID)
	if err != nil || s.State != "suspended" || s.PID != 0 {
		x.t.Fatalf("suspend: %+v, %v", s, err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", x.source.PID)); err == nil {
		x.t.Fatalf("process %d of a suspended sandbox still runs", x.source.PID)
	}
	if x.rng.IntN(2) == 0 {
		x.d.crash(x.t)
		x.d.launch(x.t)
	}
	s, err = x.d.Resume(x.d.ctx(x.t, stepLimit), x.source.ID)
	if err != nil || s.ID != x.source.ID || s.State != "running" || s.SnapshotTag != x.source.SnapshotTag {
		x.t.Fatalf("resume %+v: %+v, %v", x.source, s, err)
	}
	p.depth = x.own.depth + 1
	x.source, x.own, x.saved = s, p, &p
	x.report.Count(&x.report.Suspensions)
	x.verifySource(p)
}

// remove removes three snapshots that build on each other and have running children. It removes
// them in each way that the API permits.
func (x *fire) remove() {
	now := x.mark(x.source.ID)
	x.still(func() {
		tags, boxes := x.grow(now)
		refused := func(tag string, opts client.DeleteOptions, words ...string) {
			x.t.Helper()
			err := x.d.DeleteSnapshot(x.d.ctx(x.t, stepLimit), tag, opts)
			wantError(x.t, fmt.Sprintf("remove %s %+v", tag, opts), err, 409, words...)
		}
		refused(tags[0], client.DeleteOptions{}, tags[1])
		refused(tags[0], client.DeleteOptions{Cascade: true}, "in use")
		refused(tags[1], client.DeleteOptions{Force: true}, "in use")
		x.d.kill(x.t, boxes[1])
		x.delete(tags[1], client.DeleteOptions{Force: true})
		// boxes[2] can still read the pages and blocks of tags[1], although that snapshot has been removed.
		x.fail(x.verifyCopy(boxes[2].ID, x.points[tags[2]]))
		x.d.kill(x.t, boxes[0])
		x.delete(tags[0], client.DeleteOptions{})

		leaf := x.newTag()
		s, err := x.branch(boxes[2].ID, leaf, client.BranchRequest{Mode: "diff"})
		x.fail(err)
		x.took(s, x.points[tags[2]])
		x.d.kill(x.t, boxes[2])
		x.check(tags[2])
		x.check(leaf)
		x.delete(tags[2], client.DeleteOptions{Cascade: true})
		if _, err := x.d.Snapshot(x.d.ctx(x.t, stepLimit), leaf); !client.IsNotFound(err) {
			x.t.Fatalf("snapshot %s after its parent was removed with cascade: %v", leaf, err)
		}
		delete(x.points, leaf)
		x.report.Count(&x.report.Removals)
	})
	x.verifySource(now)
}

// grow branches the paused source, a child of that branch, and a child of the second branch. When
// grow returns, only the last child runs.
func (x *fire) grow(now point) (tags []string, boxes []client.Sandbox) {
	x.t.Helper()
	from := x.source.ID
	for i := range 3 {
		tag := x.newTag()
		s, err := x.branch(from, tag, client.BranchRequest{Mode: "live"})
		x.fail(err)
		x.took(s, now)
		child := x.fork(tag)
		x.fail(x.verifyCopy(child.ID, now))
		x.report.Count(&x.report.ChildrenVerified)
		tags, boxes, from = append(tags, tag), append(boxes, child), child.ID
		if i < 2 {
			now = x.mark(child.ID)
			_, err := x.d.Pause(x.d.ctx(x.t, stepLimit), child.ID)
			x.fail(err)
		}
	}
	return tags, boxes
}
