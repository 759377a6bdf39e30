package sandbox

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/forkd/forkd/internal/agentclient"
	"github.com/forkd/forkd/internal/agentproto"
)

// guestCall is one request to the agent of a running sandbox. Its context ends with the VM.
type guestCall struct {
	Guest
	ctx  context.Context
	stop func()
	s    *Sandbox
	op   string
}

// guestOf begins a request to the agent of a sandbox, which the caller stops.
func (m *Manager) guestOf(ctx context.Context, id, op string) (*guestCall, error) {
	for try := 0; ; try++ {
		s, err := m.awake(ctx, id)
		if err != nil {
			return nil, err
		}
		end := s.usage.begin()
		guest, err := s.running(op)
		if err == nil {
			ctx, stop := whileAlive(ctx, s.vmm)
			return &guestCall{Guest: guest, ctx: ctx, stop: func() { stop(); end() }, s: s, op: op}, nil
		}
		end()
		if s.Info().IdleTimeout == 0 || try == wakeTries {
			return nil, err
		}
	}
}

// lastGasp is how long before the end of its VM is known a connection to the agent, or to its VMM, may break.
const lastGasp = 2 * time.Second

// because prefers the end of the VM to the broken connection that comes with it.
func (c *guestCall) because(err error) error {
	var answer *agentclient.Error
	if err == nil || errors.As(err, &answer) && answer.Code != agentclient.CodeInternal {
		return err
	}
	select {
	case <-c.ctx.Done():
	case <-time.After(lastGasp):
	}
	var end *exitError
	if errors.As(context.Cause(c.ctx), &end) {
		return &StateError{ID: c.s.record.ID, Op: c.op, State: Exited, Exit: end.exit}
	}
	return because(c.ctx, err)
}

// wakeTries is how often a request is made to a sandbox that is suspended between its waking and the request.
const wakeTries = 3

// because prefers the end of the VM to the broken connection that followed from it.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// Ping asks the agent of a sandbox for its announcement.
func (m *Manager) Ping(ctx context.Context, id string) (agentproto.Ready, error) {
	call, err := m.guestOf(ctx, id, "ping")
	if err != nil {
		return agentproto.Ready{}, err
	}
	defer call.stop()
	ready, err := call.Ping(call.ctx)
	return ready, call.because(err)
}

// Exec runs a command in a sandbox.
func (m *Manager) Exec(ctx context.Context, id string, req agentclient.ExecRequest) (agentclient.ExecResult, error) {
	call, err := m.guestOf(ctx, id, "exec in")
	if err != nil {
		return agentclient.ExecResult{}, err
	}
	defer call.stop()
	result, err := call.Exec(call.ctx, req)
	return result, call.because(err)
}

// Eval runs code in a warm interpreter of a sandbox.
func (m *Manager) Eval(ctx context.Context, id, code string, opts agentclient.EvalOptions) (agentclient.EvalResult, error) {
	call, err := m.guestOf(ctx, id, "eval in")
	if err != nil {
		return agentclient.EvalResult{}, err
	}
	defer call.stop()
	result, err := call.Eval(call.ctx, code, opts)
	return result, call.because(err)
}

// ReadFile copies a file of a sandbox to w.
func (m *Manager) ReadFile(ctx context.Context, id, path, user string, w io.Writer) error {
	call, err := m.guestOf(ctx, id, "read a file of")
	if err != nil {
		return err
	}
	defer call.stop()
	r, err := call.ReadFile(call.ctx, path, user)
	if err != nil {
		return call.because(err)
	}
	defer r.Close()
	_, err = io.Copy(w, r)
	return call.because(err)
}

// WriteFile writes a file in a sandbox.
func (m *Manager) WriteFile(ctx context.Context, id, path, user string, content io.Reader) error {
	call, err := m.guestOf(ctx, id, "write a file of")
	if err != nil {
		return err
	}
	defer call.stop()
	return call.because(call.WriteFile(call.ctx, path, user, content))
}
