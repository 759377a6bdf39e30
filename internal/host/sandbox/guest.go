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

// guestCall is one request to the agent of a running sandbox. Its context is cancelled when the VM
// ends, and when the sandbox is rolled back, suspended or deleted.
type guestCall struct {
	Guest
	ctx   context.Context
	stop  func()
	calls context.Context // cancelled by a rollback, suspension or deletion; the cause names the operation
	s     *Sandbox
	op    string
}

// wakeTries limits how often one request resumes a sandbox, if the sandbox is suspended again each
// time before the request has begun.
const wakeTries = 3

// guestOf begins a request to the agent of a sandbox. The caller must call stop at the end of the
// request.
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

// guestCall begins a request to the agent of a running sandbox. The result's field stop is a
// function that also calls end.
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

// dial connects to the guest. So that no request reaches another state of the sandbox, dial fails
// when c.calls has ended. For example, after a rollback the same address leads to a guest in which
// the same process ids belong to other processes.
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

// explain returns the reason why a connection has broken or does not answer. If an operation on the
// sandbox has cut the connection, the reason is this operation. Otherwise the reason is err. A
// pause breaks no connections.
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

// Use calls f, which may open connections to ports of the sandbox's guest. If the sandbox was
// suspended because it was idle, Use resumes it first. The sandbox counts as used until f returns.
// The context for f ends when the VM ends, or when the sandbox is rolled back, suspended or
// deleted; the error of f is then replaced by a *StateError or a *CutOffError. In error texts, the
// parameter op, such as "exec in", precedes the sandbox's id.
func (m *Manager) Use(ctx context.Context, id, op string, f func(context.Context, agentclient.DialFunc) error) error {
	call, err := m.guestOf(ctx, id, op)
	if err != nil {
		return err
	}
	defer call.stop()
	call.s.since.Count()
	defer call.s.since.Count() // again at the end, because f may have changed something after a concurrent branch
	return call.explain(f(call.ctx, call.dial))
}

// LookAt is like Use, for requests that change neither files nor processes. It does not count as a
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

// LookAtRunning is like LookAt, for clients that may only read. It does not resume the sandbox, and
// does not count as use. If the sandbox is not running, the error is a *StateError.
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
