package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// delay returns a random delay for a concurrent operation.
func (l *line) delay(most time.Duration) time.Duration {
	return time.Duration(l.rig.rng.Int64N(int64(most)))
}

// racer is a branch that is requested at a random time during another operation.
type racer struct {
	req    vmmproto.Branch
	snap   *Snapshot
	layer  *os.File
	before time.Duration // time until the request
	after  time.Duration // time from the answer until the call of WaitCopied

	p   *pending // nil if the branch was refused
	err error
}

// newRacer makes the branch for a racer. The caller sets the delays and the mark.
func (l *line) newRacer(req vmmproto.Branch) (c *racer, err error) {
	c = &racer{req: req}
	c.snap, c.layer, err = l.source.newSnapshot("race")
	return c, err
}

func (c *racer) run(ctx context.Context, v *running) {
	time.Sleep(c.before)
	if c.p, c.err = v.branchTo(ctx, c.req, c.snap, c.layer); c.err != nil {
		return
	}
	time.Sleep(c.after)
	c.err = v.wait(ctx, c.p)
}

// race requests two branches. It sends the second request at about the same time as the first, or
// while the first branch is being copied, or after the copy but before WaitCopied. Either one of
// the branches is refused, or both have the right content.
func (l *line) race(ctx context.Context) error {
	v := l.source
	at, err := v.setMark(ctx, "hot", "0")
	if err != nil {
		return err
	}
	var racers [2]*racer
	var wg sync.WaitGroup
	for i := range racers {
		if racers[i], err = l.newRacer(l.request()); err != nil {
			return err
		}
		c := racers[i]
		c.snap.at = at
		c.before, c.after = l.delay(50*time.Millisecond), l.delay(50*time.Millisecond)
	}
	racers[0].req.Mode = vm.BranchLive
	for _, c := range racers {
		l.rig.rep.Count(&l.rig.rep.Races)
		wg.Go(func() { c.run(ctx, v) })
	}
	wg.Wait()
	var whole []*pending
	for _, c := range racers {
		switch {
		case c.err == nil:
			whole = append(whole, c.p)
		case c.p == nil && errors.Is(c.err, vm.ErrCopying):
			l.rig.rep.Count(&l.rig.rep.Refused)
		default:
			return c.err
		}
	}
	return l.finishRace(ctx, whole)
}

// finishRace waits for the branches of a race, sorts them by time and verifies them.
func (l *line) finishRace(ctx context.Context, whole []*pending) error {
	v := l.source
	if len(whole) == 0 {
		return errors.New("both branches of a race were refused")
	}
	slices.SortFunc(whole, func(a, b *pending) int { return len(a.snap.disks) - len(b.snap.disks) })
	for _, p := range whole {
		if _, err := v.complete(p); err != nil {
			return err
		}
		l.last = p.snap
	}
	for _, p := range whole {
		if err := l.check(ctx, p.snap); err != nil {
			return err
		}
	}
	return l.verifySource(ctx)
}

// interrupt pauses and resumes the guest at random times during a live branch, and while the frozen
// pages of the branch are copied. If the guest was paused at the moment of the branch, it must stay
// paused.
func (l *line) interrupt(ctx context.Context) error {
	v := l.source
	at, err := v.setMark(ctx, "hot", "0")
	if err != nil {
		return err
	}
	c, err := l.newRacer(l.live())
	if err != nil {
		return err
	}
	c.snap.at = at
	c.before, c.after = l.delay(20*time.Millisecond), l.delay(20*time.Millisecond)
	l.rig.rep.Count(&l.rig.rep.Races)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.run(ctx, v)
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-time.After(l.delay(10 * time.Millisecond)):
		}
		if err := l.disturb(ctx, running); err != nil {
			return err
		}
	}
	if c.err != nil {
		return c.err
	}
	if l.last, err = v.complete(c.p); err != nil {
		return err
	}
	if err := l.goesOn(ctx); err != nil {
		return err
	}
	if err := l.verifySource(ctx); err != nil {
		return err
	}
	return l.check(ctx, l.last)
}

// disturb resumes the source. If more is true, it may instead pause the source or ask the source's
// VMM for statistics.
func (l *line) disturb(ctx context.Context, more bool) error {
	switch n := l.rig.rng.IntN(5); {
	case !more || n < 2:
		return l.source.Resume(ctx)
	case n < 4:
		return l.source.Pause(ctx)
	}
	_, err := l.source.Stats(ctx)
	return err
}

// undo rolls the source back while a branch of it is being copied. The branch and the source must
// have the right content.
func (l *line) undo(ctx context.Context) error {
	v := l.source
	if _, err := v.ask(ctx, "hot", "0"); err != nil {
		return err
	}
	p, err := v.begin(ctx, l.live())
	if err != nil {
		return err
	}
	l.rig.rep.Count(&l.rig.rep.Races)
	copied := make(chan error, 1)
	late := l.delay(40 * time.Millisecond)
	go func() {
		time.Sleep(late)
		copied <- v.wait(ctx, p)
	}()
	time.Sleep(l.delay(40 * time.Millisecond))
	err = v.restore(ctx, l.last)
	if err := errors.Join(err, <-copied); err != nil {
		return err
	}
	l.rig.rep.Count(&l.rig.rep.Rollbacks)
	if err := v.verifyCopy(ctx, l.last); err != nil {
		return fmt.Errorf("rolled back while being copied: %w", err)
	}
	if _, err := v.complete(p); err != nil {
		return err
	}
	return l.check(ctx, p.snap)
}

// kill kills the VMM in the middle of a branch. Earlier snapshots of the VM must be undamaged.
func (l *line) kill(ctx context.Context) error {
	c, err := l.newRacer(l.request())
	if err != nil {
		return err
	}
	delay := l.delay(80 * time.Millisecond)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.run(ctx, l.source)
	}()
	time.Sleep(delay)
	if err := l.source.Kill(); err != nil {
		return err
	}
	<-ended
	if c.err != nil && !errors.Is(c.err, vmmclient.ErrGone) {
		return fmt.Errorf("branch of a killed VMM: %w", c.err)
	}
	l.rig.rep.Count(&l.rig.rep.Kills)
	return l.restart(ctx)
}
