package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// guestCall is one request to the agent of a running sandbox. Its context ends with the VM, and
// when the guest is taken away: by a rollback, a suspension or a deletion.
type guestCall struct {
	Guest
	ctx   context.Context
	stop  func()
	calls context.Context // ends when the guest is taken away; its cause says why
	s     *Sandbox
	op    string
}

// wakeTries is how often a request is tried if the sandbox is suspended again between its
// resumption and the request.
const wakeTries = 3

// guestOf begins a request to the agent of a sandbox. The caller stops it.
func (m *Manager) guestOf(ctx context.Context, id, op string) (*guestCall, error) {
	for try := 0; ; try++ {
		s, err := m.awake(ctx, id)
		if err != nil {
			return nil, err
		}
		end := s.usage.Begin()
		call, err := s.guestCall(ctx, op, end)
		if err == nil {
			return call, nil
		}
		end()
		if s.Info().IdleTimeout == 0 || try == wakeTries {
			return nil, err
		}
	}
}

// guestCall begins a request to the agent of a running sandbox. Stopping it calls end.
func (s *Sandbox) guestCall(ctx context.Context, op string, end func()) (*guestCall, error) {
	v, calls, err := s.running(op)
	if err != nil {
		return nil, err
	}
	ctx, stop := vmpool.WhileAlive(ctx, v.vmm)
	ctx, cancel := context.WithCancelCause(ctx)
	unwatch := context.AfterFunc(calls, func() { cancel(context.Cause(calls)) })
	return &guestCall{Guest: v.guest, ctx: ctx, calls: calls, s: s, op: op,
		stop: func() { unwatch(); cancel(nil); stop(); end() }}, nil
}

// dial reaches the guest until it is taken away. Afterwards the same address may lead to another
// state of the sandbox, such as after a rollback, where the same numbers name other processes.
func (c *guestCall) dial(ctx context.Context, port uint32) (net.Conn, error) {
	conn, err := c.Dial(ctx, port)
	if cause := context.Cause(c.calls); cause != nil {
		if err == nil {
			conn.Close()
		}
		return nil, cause
	}
	return conn, err
}

// explain replaces the error of a broken or silent connection by the operation on the sandbox that
// broke it. A paused sandbox keeps its connections.
func (c *guestCall) explain(err error) error {
	var answer *agentclient.Error
	if err == nil || errors.As(err, &answer) && answer.Code != agentclient.CodeInternal {
		return err
	}
	select {
	case <-c.ctx.Done():
	case <-time.After(exitDelay):
	}
	var cut *CutOffError
	if errors.As(context.Cause(c.calls), &cut) {
		return &CutOffError{ID: c.s.id, Op: c.op, By: cut.By}
	}
	var end *vmpool.ExitError
	if errors.As(context.Cause(c.ctx), &end) {
		return &StateError{ID: c.s.id, Op: c.op, State: Exited, Exit: end.Exit}
	}
	if errors.Is(c.ctx.Err(), context.DeadlineExceeded) {
		if _, _, stands := c.s.running(c.op); stands != nil {
			return stands
		}
		return fmt.Errorf("%s sandbox %q: its guest does not answer: %w", c.op, c.s.id, c.ctx.Err())
	}
	return vmpool.Cause(c.ctx, err)
}

// Use lets f talk to the guest of a running sandbox, over connections that f opens to ports of the
// guest. A sandbox that was suspended for being idle is resumed first, and counts as used until f
// returns. The context for f ends with the VM, or when the guest is taken away; the resulting error
// of f is replaced by a *StateError or a *CutOffError. Errors put op before the sandbox, as in
// "exec in".
func (m *Manager) Use(ctx context.Context, id, op string, f func(context.Context, agentclient.DialFunc) error) error {
	call, err := m.guestOf(ctx, id, op)
	if err != nil {
		return err
	}
	defer call.stop()
	call.s.since.Count()
	defer call.s.since.Count() // the call may have changed something after a concurrent branch
	return call.explain(f(call.ctx, call.dial))
}

// LookAt is Use for requests that change neither files nor processes. It does not count as a
// change.
func (m *Manager) LookAt(ctx context.Context, id, op string, f func(context.Context,
	agentclient.DialFunc) error) error {
	call, err := m.guestOf(ctx, id, op)
	if err != nil {
		return err
	}
	defer call.stop()
	return call.explain(f(call.ctx, call.dial))
}

// LookAtRunning is LookAt for clients that may only read: it neither resumes a sandbox nor counts
// as use. If the sandbox does not run, the error is a *StateError.
func (m *Manager) LookAtRunning(ctx context.Context, id, op string,
	f func(context.Context, agentclient.DialFunc) error) error {
	s, err := m.Get(id)
	if err != nil {
		return err
	}
	call, err := s.guestCall(ctx, op, func() {})
	if err != nil {
		return err
	}
	defer call.stop()
	return call.explain(f(call.ctx, call.dial))
}
