package tenancy

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/byage"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/conlog"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/procmem"
	"github.com/forkd/forkd/internal/host/recent"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/netproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Reach returns a *sandbox.NotFoundError if the principal may not see the sandbox.
func (v *View) Reach(id string) error {
	if v.only == id && id != "" {
		return nil
	}
	if v.isEmpty() {
		return &sandbox.NotFoundError{ID: id}
	}
	return v.host.manager.Reach(v.as(context.Background()), id)
}

// reached passes the manager, and a context in which the manager acts for the principal, to the
// given function. If the principal may not see the sandbox, reached returns an error instead.
func reached[T any](ctx context.Context, v *View, id string,
	do func(context.Context, *sandbox.Manager) (T, error)) (t T, err error) {
	if err := v.Reach(id); err != nil {
		return t, err
	}
	return do(v.as(ctx), v.host.manager)
}

// reach is like reached, for a function that returns only an error.
func (v *View) reach(ctx context.Context, id string, do func(context.Context, *sandbox.Manager) error) error {
	_, err := reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (struct{}, error) {
		return struct{}{}, do(ctx, m)
	})
	return err
}

// Sandbox returns the Info of a sandbox.
func (v *View) Sandbox(id string) (sandbox.Info, error) {
	return reached(context.Background(), v, id, func(_ context.Context, m *sandbox.Manager) (i sandbox.Info, err error) {
		s, err := m.Get(id)
		if err != nil {
			return i, err
		}
		return s.Info(), nil
	})
}

// Sandboxes returns the Info of all sandboxes that the principal may see.
func (v *View) Sandboxes() []sandbox.Info {
	if v.isEmpty() {
		return nil
	}
	return slices.DeleteFunc(v.host.manager.List(), func(i sandbox.Info) bool { return !v.p.Prefix.HasLabels(i.Labels) })
}

// SandboxPage returns the Info of the sandboxes after a place in the list, but of at most the given
// number of sandboxes. It returns only sandboxes that the principal may see and for which keep
// returns true. It does not look at sandboxes before and after the page.
func (v *View) SandboxPage(at byage.Place, most int, keep func(sandbox.Info) bool) (page []sandbox.Info) {
	for !v.isEmpty() && most > 0 {
		next := v.host.manager.After(at, most)
		for _, i := range next {
			if v.p.Prefix.HasLabels(i.Labels) && keep(i) {
				page = append(page, i)
			}
			if len(page) == most {
				return page
			}
			at = byage.Place{Created: i.Created, ID: i.ID}
		}
		if len(next) < most {
			break
		}
	}
	return page
}

// Fork calls Manager.Fork.
func (v *View) Fork(ctx context.Context, req sandbox.ForkRequest) (res sandbox.ForkResult, err error) {
	if v.isEmpty() {
		return res, &store.NotFoundError{Tag: req.Tag}
	}
	if err := v.haveVolumes(req.Volumes); err != nil {
		return res, err
	}
	return v.host.manager.Fork(v.as(ctx), req)
}

// ForkSandbox calls Manager.ForkSandbox.
func (v *View) ForkSandbox(ctx context.Context, id string, mode sandbox.BranchRequest,
	req sandbox.ForkRequest) (res sandbox.ForkResult, b sandbox.BranchResult, err error) {
	err = v.reach(ctx, id, func(ctx context.Context, m *sandbox.Manager) (err error) {
		if err := v.haveVolumes(req.Volumes); err != nil {
			return err
		}
		res, b, err = m.ForkSandbox(ctx, id, mode, req)
		return err
	})
	return res, b, err
}

// Branch calls Manager.Branch if the principal may give the requested labels.
func (v *View) Branch(ctx context.Context, id string, req sandbox.BranchRequest) (r sandbox.BranchResult, err error) {
	defer func() { v.narrow(&r.Info) }()
	return reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (r sandbox.BranchResult, err error) {
		for name := range req.Labels {
			if err := owner.Within(ctx, v.mayLabel(name), "labels: %.70q", name); err != nil {
				return r, err
			}
		}
		return m.Branch(ctx, id, req)
	})
}

// turnLabel is the label of a branch that a client has made at the end of a turn of its AI agent.
// It is also the prefix of the names of such a branch's other labels.
const turnLabel = "turn"

// mayLabel reports whether the principal may give a snapshot a label with this name. All principals
// may use turnLabel and the labels with its prefix, because these labels have a meaning only for
// the sandbox that was branched.
func (v *View) mayLabel(name string) bool {
	return strings.HasPrefix(name, string(v.p.Prefix)) || name == turnLabel || strings.HasPrefix(name, turnLabel+".")
}

// Rollback calls Manager.Rollback.
func (v *View) Rollback(ctx context.Context, id, to string, strict unique.Strict) (sandbox.RollbackResult, error) {
	return reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (sandbox.RollbackResult, error) {
		return m.Rollback(ctx, id, to, strict)
	})
}

// Promote calls Manager.Promote, if the principal may see both sandboxes.
func (v *View) Promote(ctx context.Context, id, from string, req sandbox.BranchRequest, strict unique.Strict) (
	r sandbox.RollbackResult, err error) {
	if err := v.Reach(from); err != nil {
		return r, err
	}
	return reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (sandbox.RollbackResult, error) {
		return m.Promote(ctx, id, from, req, strict)
	})
}

// Pause calls Manager.Pause.
func (v *View) Pause(ctx context.Context, id string) (sandbox.Info, error) {
	return reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (sandbox.Info, error) {
		return m.Pause(ctx, id)
	})
}

// Resume calls Manager.Resume.
func (v *View) Resume(ctx context.Context, id string) (sandbox.Info, error) {
	return reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (sandbox.Info, error) {
		return m.Resume(ctx, id)
	})
}

// Suspend calls Manager.Suspend.
func (v *View) Suspend(ctx context.Context, id string) (sandbox.Info, error) {
	return reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (sandbox.Info, error) {
		return m.Suspend(ctx, id)
	})
}

// SuspendWith calls Manager.SuspendWith.
func (v *View) SuspendWith(ctx context.Context, id string, how sandbox.Suspension) (sandbox.Info, error) {
	return reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (sandbox.Info, error) {
		return m.SuspendWith(ctx, id, how)
	})
}

// With calls Manager.With.
func (v *View) With(ctx context.Context, id string, f func(*sandbox.Held) error) error {
	return v.reach(ctx, id, func(ctx context.Context, m *sandbox.Manager) error { return m.With(ctx, id, f) })
}

// Kill calls Manager.Kill.
func (v *View) Kill(id string) error {
	return v.reach(context.Background(), id, func(_ context.Context, m *sandbox.Manager) error { return m.Kill(id) })
}

// ChangeLabels calls Manager.ChangeLabels.
func (v *View) ChangeLabels(ctx context.Context, id string, change map[string]*string) (sandbox.Info, error) {
	return reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (sandbox.Info, error) {
		return m.ChangeLabels(ctx, id, change)
	})
}

// SetLimits calls Manager.SetLimits.
func (v *View) SetLimits(ctx context.Context, id string, limits vm.Limits) (sandbox.Info, error) {
	return reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (sandbox.Info, error) {
		return m.SetLimits(ctx, id, limits)
	})
}

// SetHooks calls Manager.SetHooks.
func (v *View) SetHooks(ctx context.Context, id string, hooks snapshot.Hooks) (sandbox.Info, error) {
	return reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (sandbox.Info, error) {
		return m.SetHooks(ctx, id, hooks)
	})
}

// Usage calls Manager.Usage.
func (v *View) Usage(id string) (limits vm.Limits, use cgroup.Usage, err error) {
	err = v.reach(context.Background(), id, func(_ context.Context, m *sandbox.Manager) (err error) {
		limits, use, err = m.Usage(id)
		return err
	})
	return limits, use, err
}

// SetNetwork calls Manager.SetNetwork.
func (v *View) SetNetwork(ctx context.Context, id string, setting netclient.Setting) (sandbox.Info, error) {
	return reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (sandbox.Info, error) {
		return m.SetNetwork(ctx, id, setting)
	})
}

// NetworkStats returns a sandbox's traffic since it was connected to the network. The result is zero
// for a sandbox without a VM, and while forkd-net is being restarted.
func (v *View) NetworkStats(ctx context.Context, id string) (netproto.Stats, error) {
	return reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (s netproto.Stats, err error) {
		link, err := m.Link(id)
		if err != nil {
			return s, err
		}
		s, err = link.Stats(ctx)
		return s, netclient.IgnoreUnconnected(err)
	})
}

// Effects returns the requests of a sandbox that were held since it was connected to the network.
// There are none for a sandbox without a VM, and while forkd-net is being restarted.
func (v *View) Effects(ctx context.Context, id string) (netproto.Effects, error) {
	return reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (e netproto.Effects, err error) {
		link, err := m.Link(id)
		if err != nil {
			return e, err
		}
		return link.Effects(ctx)
	})
}

// ReleaseEffects calls Manager.ReleaseEffects.
func (v *View) ReleaseEffects(ctx context.Context, id string) (sandbox.Info, error) {
	return reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (sandbox.Info, error) {
		return m.ReleaseEffects(ctx, id)
	})
}

// SetStrict calls Manager.SetStrict.
func (v *View) SetStrict(ctx context.Context, id string, strict unique.Strict) error {
	return v.reach(ctx, id, func(ctx context.Context, m *sandbox.Manager) error { return m.SetStrict(ctx, id, strict) })
}

// Stats calls Manager.Stats, and measures the memory of the sandbox's VMM process.
func (v *View) Stats(ctx context.Context, id string) (sandbox.Stats, error) {
	return v.RecentStats(ctx, id, 0)
}

// withMemory measures a sandbox, including the memory of its VMM process.
func withMemory(m *sandbox.Manager, ctx context.Context, id string) (sandbox.Stats, error) {
	st, err := m.Stats(ctx, id)
	if err != nil {
		return st, err
	}
	st.Memory, err = procmem.Of(st.PID, st.RAM)
	return st, err
}

// MaxStatsAge is the maximum age of the results of RecentStats and RecentWritten.
const MaxStatsAge = 10 * time.Second

// statsKey identifies a sandbox's measurements, which all callers share. A measurement is not used
// after a change of the state, of the snapshot that the sandbox runs from, or of its latest
// snapshot.
type statsKey struct {
	id    string
	state sandbox.State
	from  string       // tag of the snapshot that the sandbox runs from
	since snapshot.Ref // latest snapshot of the sandbox
}

// RecentStats is like Stats, but accepts a result that is at most as old as the given age. All
// callers share the measurements.
func (v *View) RecentStats(ctx context.Context, id string, age time.Duration) (sandbox.Stats, error) {
	return v.measured(ctx, id, age, v.host.stats, withMemory)
}

// RecentWritten is like RecentStats, but does not measure the memory of the VMM process. It takes
// only a small fraction of the time that RecentStats takes.
func (v *View) RecentWritten(ctx context.Context, id string, age time.Duration) (sandbox.Stats, error) {
	return v.measured(ctx, id, age, v.host.written, (*sandbox.Manager).Stats)
}

func (v *View) measured(ctx context.Context, id string, age time.Duration, of *recent.Values[statsKey, sandbox.Stats],
	measure func(m *sandbox.Manager, ctx context.Context, id string) (sandbox.Stats, error)) (sandbox.Stats, error) {
	return reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (sandbox.Stats, error) {
		s, err := m.Get(id)
		if err != nil {
			return sandbox.Stats{}, err
		}
		i := s.Info()
		return of.Get(ctx, statsKey{id, i.State, i.SnapshotTag, i.At}, age, func() (sandbox.Stats, error) {
			return measure(m, ctx, id)
		})
	})
}

// Console calls Manager.Console.
func (v *View) Console(id string) (console.Text, error) {
	return reached(context.Background(), v, id, func(_ context.Context, m *sandbox.Manager) (console.Text, error) {
		return m.Console(id)
	})
}

// Follow calls Manager.Follow.
func (v *View) Follow(id string) (*conlog.Log, error) {
	return reached(context.Background(), v, id, func(_ context.Context, m *sandbox.Manager) (*conlog.Log, error) {
		return m.Follow(id)
	})
}

// Use calls Manager.Use.
func (v *View) Use(ctx context.Context, id, op string, f func(context.Context, agentclient.DialFunc) error) error {
	return v.reach(ctx, id, func(ctx context.Context, m *sandbox.Manager) error { return m.Use(ctx, id, op, f) })
}

// LookAt calls Manager.LookAt.
func (v *View) LookAt(ctx context.Context, id, op string,
	f func(context.Context, agentclient.DialFunc) error) error {
	return v.reach(ctx, id, func(ctx context.Context, m *sandbox.Manager) error { return m.LookAt(ctx, id, op, f) })
}

// LookAtRunning calls Manager.LookAtRunning.
func (v *View) LookAtRunning(ctx context.Context, id, op string,
	f func(context.Context, agentclient.DialFunc) error) error {
	return v.reach(ctx, id, func(ctx context.Context, m *sandbox.Manager) error {
		return m.LookAtRunning(ctx, id, op, f)
	})
}
