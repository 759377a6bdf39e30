package sandbox

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/hook"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/owner"
)

// MaxFork is the maximum number of children in one request.
const MaxFork = 1000

func (r *ForkRequest) check() error {
	if err := snapshot.CheckTag(r.Tag); err != nil {
		return &invalid.Error{Field: "snapshot_tag", Reason: err.Error()}
	}
	return r.checkChildren()
}

// checkChildren checks the parts of a request that do not depend on the snapshot to be forked.
func (r *ForkRequest) checkChildren() error {
	if r.N < 1 || r.N > MaxFork {
		return invalid.Errorf("n", "%d: want 1 to %d", r.N, MaxFork)
	}
	if err := ledger.CheckGiven(r.Env, r.HostnamePrefix, r.Annotation, r.Hooks, r.Labels); err != nil {
		return err
	}
	if r.Network != nil {
		if _, err := netclient.FillSecrets("network.", r.Network.Secrets, nil); err != nil {
			return err
		}
	}
	return cmp.Or(r.Strict.Check(), ledger.CheckTimes(r.TTL, r.IdleTimeout),
		mounts.Check(r.Volumes, r.N))
}

// checkAgainst checks the parts of a request that depend on the snapshot to be forked.
func (m *Manager) checkAgainst(ctx context.Context, r *ForkRequest, parent *snapshot.Manifest) error {
	if r.Network != nil {
		present, err := netclient.FromSnapshot(parent.Guest.Network)
		if err != nil { // the snapshot's own policy is invalid; the request can name another policy
			present = netclient.Isolated()
		}
		if r.present != nil {
			present = *r.present
		}
		if err := netclient.MayOpen(ctx, m.cfg.OpenPrivate, "network.", r.Network, present.Policy); err != nil {
			return err
		}
	}
	return m.cfg.VMMs.CheckLimits("limits.", *cmp.Or(r.Limits, &parent.Guest.Limits))
}

// Fork starts children of a snapshot. A child has started when its agent has confirmed its new
// identity. If one child fails, and the request does not permit failures of some children, the
// other children are killed. If the fork fails, the error is a *ForkError.
func (m *Manager) Fork(ctx context.Context, req ForkRequest) (result ForkResult, err error) {
	start := time.Now()
	if err := req.check(); err != nil {
		return ForkResult{}, err
	}
	if req.Labels, err = owner.Of(ctx).Label(req.Labels); err != nil {
		return ForkResult{}, err
	}
	if err := m.MayUse(ctx, req.Tag); err != nil {
		return ForkResult{}, err
	}
	// The snapshot is not deleted before done is called. By then, every child has its own lease.
	tag, done, err := m.booted(ctx, req.Tag, req.N)
	if err != nil {
		return ForkResult{}, err
	}
	defer done()
	req.Tag = tag
	lease, err := m.cfg.Store.AcquireFork(tag)
	if err != nil {
		return ForkResult{}, err
	}
	defer lease.Release()
	// Check again, because the snapshot may have been replaced while booted waited. From here on,
	// no other snapshot can take the tag.
	if err := m.MayUse(ctx, req.Tag); err != nil {
		return ForkResult{}, err
	}
	if err := m.checkAgainst(ctx, &req, lease.Manifest()); err != nil {
		return ForkResult{}, err
	}
	release, err := m.reserve(owner.Of(ctx), req.N)
	if err != nil {
		return ForkResult{}, err
	}
	defer release()
	// This step may merge layers, which is costly, so the quota was checked before it.
	if err := mounts.Admit(ctx, m.cfg.Volumes, req.Volumes, lease.Manifest()); err != nil {
		return ForkResult{}, err
	}
	vcpus := lease.Manifest().Machine.VCPUs
	if err := m.admit(req.N, vcpus); err != nil {
		return ForkResult{}, err
	}
	m.pool.Begin()
	started := sync.OnceFunc(func() { m.admitted.Started(req.N); m.pool.End() })
	defer started()
	req.hooked = !req.NoHooks && hook.Of(*cmp.Or(req.Hooks, &lease.Manifest().Guest.Hooks), hook.AfterFork) != nil
	result, err = m.fork(ctx, start, req, vcpus, started)
	if err == nil {
		m.pool.Keep(lease.Manifest().ID, lease.Manifest().Machine.Shape())
	}
	m.cfg.Observer.ForkDone(result, err)
	return result, err
}

// fork starts children for which places are reserved, and hands them out as one unit. If the daemon
// is killed before it has handed the children out, the next daemon kills all of them. Before hooks
// run, fork calls the function started, because a hook may take minutes.
func (m *Manager) fork(ctx context.Context, start time.Time, req ForkRequest, vcpus uint32, started func()) (ForkResult,
	error) {
	unfinished, err := ledger.BeginFork(m.cfg.RunDir, m.cfg.DataDir, req.N, req.Provisional)
	if err != nil {
		m.givePlaces(make([]*Sandbox, req.N), vcpus)
		return ForkResult{}, err
	}
	children, errs := m.startChildren(ctx, start, req, unfinished.ID)
	m.givePlaces(children, vcpus)
	result, err := countFailed(ctx, req, errs)
	if err == nil && req.hooked {
		started()
		m.afterFork(ctx, start, req, unfinished.ID, children, errs)
		result, err = countFailed(ctx, req, errs)
	}
	children = slices.DeleteFunc(children, func(s *Sandbox) bool { return s == nil })
	if err == nil && !req.Provisional {
		err = unfinished.Finish()
	}
	if err != nil {
		m.endAll(children)
		_ = unfinished.Finish() // no caller is left that could use the children
		return result, err
	}
	result.Keep, result.Kill = unfinished.Finish, m.Kill
	for _, s := range children {
		m.adopt(s, event.SandboxCreated)
		info := s.Info()
		result.VMMWall = max(result.VMMWall, info.Timing.VMM)
		result.ForkWall = max(result.ForkWall, info.Timing.Ready)
		result.Sandboxes = append(result.Sandboxes, info)
		m.cfg.Observer.ChildReady(info.Timing)
	}
	return result, nil
}

// startChildren starts the children in waves. Within a wave they start concurrently, as far as the
// gates permit. The next wave starts when all children of the wave have confirmed. With waves, most
// children confirm early. In a single wave of a hundred children on one CPU, half of the children
// would confirm almost as late as the last child. If all children are required, the first failure
// cancels the other children.
func (m *Manager) startChildren(ctx context.Context, start time.Time, req ForkRequest, fork string) ([]*Sandbox,
	[]error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	children, errs := make([]*Sandbox, req.N), make([]error, req.N)
	for first := 0; first < req.N; first += m.wave {
		last := min(first+m.wave, req.N)
		var group, restoring sync.WaitGroup
		restoring.Add(last - first)
		start1 := func(i int) {
			children[i], errs[i] = m.startChild(ctx, start, req, fork, &restoring)
			if errs[i] != nil && !req.AllowPartial {
				cancel()
			}
		}
		for i := first + 1; i < last; i++ {
			group.Go(func() { start1(i) })
		}
		start1(first) // in this goroutine, because a single child should not wait until another thread wakes up
		group.Wait()
	}
	return children, errs
}

// afterFork runs the after_fork hooks of children that have confirmed, at most m.wave hooks at a
// time. It ends a child whose hook fails, and sets the child to nil. If all children are required,
// the first failure cancels the other hooks.
func (m *Manager) afterFork(ctx context.Context, start time.Time, req ForkRequest, fork string, children []*Sandbox,
	errs []error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gate.Each(m.wave, children, func(i int, s *Sandbox) {
		if s == nil {
			return
		}
		if errs[i] = m.hookIn(ctx, s.live, &s.record, hook.AfterFork); errs[i] == nil {
			errs[i] = s.ready(start, fork)
		}
		if errs[i] != nil {
			if !req.AllowPartial {
				cancel()
			}
			m.end(s)
			children[i] = nil
		}
	})
}

// countFailed counts the children that did not start. It returns an error if the request requires
// more children than have started, or if the client has disconnected.
func countFailed(ctx context.Context, req ForkRequest, errs []error) (result ForkResult, _ error) {
	var first error
	for _, err := range errs {
		if err == nil {
			continue
		}
		result.Failed++
		if errors.As(err, new(*failure.UnconfirmedError)) {
			result.Unconfirmed++
		}
		if first == nil || errors.Is(first, context.Canceled) {
			first = err // prefer an error that was not caused by cancelling the other children
		}
	}
	if result.Failed > 0 && (!req.AllowPartial || result.Failed == req.N || ctx.Err() != nil) {
		return result, &failure.ForkError{Tag: req.Tag, Asked: req.N, Failed: result.Failed,
			Unconfirmed: result.Unconfirmed, First: first}
	}
	return result, nil
}
