package torture

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/test/rig"
)

// maxDepth is the maximum number of memory layers that a line of descent has above its base.
const maxDepth = 30

// maxDiskLayers limits the disk layers of a line of descent. Every branch adds a layer, and a
// restore must send the descriptors of all layers in one message.
const maxDiskLayers = 100

// line is a line of descent: a source, and the snapshots from which the source descends. A child of
// the latest snapshot repeatedly replaces the source, so that the chains of layers grow.
type line struct {
	rig    *Rig
	source *running
	last   *Snapshot   // latest snapshot to which the source can be rolled back
	snaps  []*Snapshot // snapshots to verify again at the end
}

// round is one operation on a line. It may make several branches.
type round struct {
	name string
	run  func(*line, context.Context) error
}

// rounds() returns the operations on a line, with their weights.
func rounds() []rig.Card[round] {
	return []rig.Card[round]{
		{Weight: 10, Do: round{"plain", (*line).plain}},
		{Weight: 2, Do: round{"storm", (*line).storm}},
		{Weight: 2, Do: round{"overlap", (*line).overlap}},
		{Weight: 3, Do: round{"race", (*line).race}},
		{Weight: 2, Do: round{"interrupt", (*line).interrupt}},
		{Weight: 2, Do: round{"undo", (*line).undo}},
		{Weight: 2, Do: round{"crowd", (*line).crowd}},
		{Weight: 2, Do: round{"stream", (*line).stream}},
		{Weight: 3, Do: round{"layer without room", (*line).layerWithoutRoom}},
		{Weight: 1, Do: round{"state without room", (*line).stateWithoutRoom}},
		{Weight: 2, Do: round{"kill", (*line).kill}},
		{Weight: 1, Do: round{"rollback", (*line).rollback}},
		{Weight: 1, Do: round{"merge", (*line).merge}},
		{Weight: 1, Do: round{"long line", (*line).long}},
	}
}

// Run makes lines of descent from the snapshot base until the report has n branches and the rig has
// done every kind of operation.
func (r *Rig) Run(ctx context.Context, base *Snapshot, n int) error {
	held, err := r.measure()
	if err != nil {
		return err
	}
	for !r.done(n) {
		if err := r.descend(ctx, base, n); err != nil {
			return err
		}
		r.logf("%s", r.rep.Line())
		if err := r.clean(held); err != nil {
			return err
		}
	}
	return nil
}

// done reports whether the report has n branches and the rig has done every kind of operation. The
// first cards of a deck are one of each kind.
func (r *Rig) done(n int) bool { return r.rep.Done() >= n && r.drawn >= len(rounds()) }

// descend grows one line of descent from the snapshot base to its full depth and verifies all its
// snapshots.
func (r *Rig) descend(ctx context.Context, base *Snapshot, n int) (err error) {
	l := &line{rig: r, last: base, snaps: []*Snapshot{base}}
	if l.source, err = r.fork(ctx, base, "src"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.source.Kill()) }()
	for l.last.depth < maxDepth && len(l.source.files) < maxDiskLayers && !r.done(n) {
		roomy, err := r.roomy()
		if err != nil {
			return err
		}
		if !roomy && len(l.snaps) == 1 {
			return fmt.Errorf("no room for layers of guests with %d MiB: give the tests less (-torture.mib) or the host more memory",
				r.shape.MemoryBytes/mib)
		}
		if !roomy {
			break
		}
		for range 1 + r.rng.IntN(3) {
			r.drawn++
			if err := l.step(ctx, r.deck.Draw()); err != nil {
				return err
			}
		}
		if err := l.step(ctx, round{name: "replace", run: (*line).replace}); err != nil {
			return err
		}
	}
	if err := l.source.Pause(ctx); err != nil {
		return err
	}
	for _, s := range l.snaps {
		r.rep.Reached(s.depth)
		if err := r.check(ctx, s, "anc"); err != nil {
			return fmt.Errorf("ancestor %s at the end: %w", s.name, err)
		}
	}
	return nil
}

func (l *line) step(ctx context.Context, x round) error {
	start := time.Now()
	if err := x.run(l, ctx); err != nil {
		return fmt.Errorf("%s: %w", x.name, l.source.explain(err))
	}
	if err := l.lean(ctx); err != nil {
		return fmt.Errorf("after %s: %w", x.name, err)
	}
	l.rig.logf("%s: %s, depth %d, %d disk layers, %v", l.source.name, x.name,
		l.last.depth, len(l.source.files), time.Since(start).Round(time.Millisecond))
	runtime.GC() // closes the files of snapshots that are no longer referenced
	return nil
}

// setHot chooses at random how many units the guest writes: all units, some of each writer, or one
// of each writer.
func (l *line) setHot(ctx context.Context) error {
	_, err := l.source.ask(ctx, "hot", []string{"0", "0", "1", "64"}[l.rig.rng.IntN(4)])
	return err
}

// took(ctx, s) records a snapshot of the source, and verifies a child of it.
func (l *line) took(ctx context.Context, s *Snapshot) error {
	l.last = s
	return l.check(ctx, s)
}

// check verifies a child of s while the source is paused, so that the child gets all of an emulated
// host's CPU. Only the round crowd tests children while the source runs.
func (l *line) check(ctx context.Context, s *Snapshot) error {
	if err := l.source.Pause(ctx); err != nil {
		return err
	}
	return errors.Join(l.rig.check(ctx, s, "child"), l.source.Resume(ctx))
}

func (l *line) verifySource(ctx context.Context) error {
	if _, err := l.source.ask(ctx, "verify"); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	l.rig.rep.Count(&l.rig.rep.SourcesVerified)
	return nil
}

// plain makes one branch, and verifies its source and a child of the branch.
func (l *line) plain(ctx context.Context) error {
	if err := l.setHot(ctx); err != nil {
		return err
	}
	s, err := l.source.branch(ctx, l.request())
	if err != nil {
		return err
	}
	if err := l.verifySource(ctx); err != nil {
		return err
	}
	return l.took(ctx, s)
}

// replace takes a branch of the source and verifies the source. Then it replaces the source with a
// child of the branch, and verifies the child.
func (l *line) replace(ctx context.Context) error {
	req := l.live()
	if l.rig.rng.IntN(3) == 0 {
		req.Mode = vm.BranchDiff
	}
	s, err := l.source.branch(ctx, req)
	if err != nil {
		return err
	}
	if err := l.verifySource(ctx); err != nil {
		return err
	}
	l.last, l.snaps = s, append(l.snaps, s)
	return l.restart(ctx)
}

// restart replaces the source with a child of the latest snapshot.
func (l *line) restart(ctx context.Context) error {
	if err := l.source.Kill(); err != nil {
		return err
	}
	child, err := l.rig.fork(ctx, l.last, "src")
	if err != nil {
		return err
	}
	l.source = child
	if err := child.verifyCopy(ctx, l.last); err != nil {
		return err
	}
	l.rig.rep.verified()
	return nil
}

// overlap requests a second branch as soon as the guest runs again after a live branch. Either the
// second branch is refused, or both branches have the right content.
func (l *line) overlap(ctx context.Context) error {
	v := l.source
	first, err := v.begin(ctx, l.live())
	if err != nil {
		return err
	}
	c, err := l.newRacer(l.request())
	if err != nil {
		return err
	}
	c.snap.at = first.snap.at
	c.run(ctx, v)
	if c.err != nil && (c.p != nil || !errors.Is(c.err, vm.ErrCopying)) {
		return c.err
	}
	if l.last, err = v.finish(ctx, first); err != nil {
		return err
	}
	if c.p == nil {
		l.rig.rep.Count(&l.rig.rep.Refused)
	} else {
		if err := l.check(ctx, l.last); err != nil {
			return err
		}
		if l.last, err = v.complete(c.p); err != nil {
			return err
		}
	}
	if err := l.verifySource(ctx); err != nil {
		return err
	}
	return l.check(ctx, l.last)
}

// crowd forks children from the snapshot that the source runs from, while the source is branched.
func (l *line) crowd(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		wg.Go(func() { errs[i] = l.rig.check(ctx, l.source.base, "crowd") })
	}
	s, err := l.source.branch(ctx, l.request())
	wg.Wait()
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	return l.took(ctx, s)
}

// stream() branches the guest while the guest program sends the answer of a verification.
func (l *line) stream(ctx context.Context) error {
	v := l.source
	s, layer, err := v.newMarked(ctx, "stream")
	if err != nil {
		return err
	}
	verified := make(chan error, 1)
	go func() {
		_, err := v.ask(ctx, "verify")
		verified <- err
	}()
	time.Sleep(l.delay(60 * time.Millisecond))
	p, err := v.branchTo(ctx, l.request(), s, layer)
	if err := errors.Join(err, <-verified); err != nil {
		return err
	}
	if s, err = v.finish(ctx, p); err != nil {
		return err
	}
	return l.took(ctx, s)
}

// rollback rolls the running source back to its latest snapshot, twice, and verifies the source.
// Then it branches the source.
func (l *line) rollback(ctx context.Context) error {
	for range 2 {
		if _, err := l.source.setMark(ctx, "hot", "0"); err != nil {
			return err
		}
		if err := l.source.restore(ctx, l.last); err != nil {
			return err
		}
		l.rig.rep.Count(&l.rig.rep.Rollbacks)
		if err := l.source.verifyCopy(ctx, l.last); err != nil {
			return fmt.Errorf("rolled back: %w", err)
		}
	}
	return l.plain(ctx)
}
