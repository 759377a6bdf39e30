package sandbox

import (
	"context"
	"io"

	"github.com/forkd/forkd/internal/agentclient"
	"github.com/forkd/forkd/internal/agentproto"
)

// guestOf returns the agent of a running sandbox and a context that ends with the VM.
func (m *Manager) guestOf(ctx context.Context, id, op string) (Guest, context.Context, func(), error) {
	for try := 0; ; try++ {
		s, err := m.awake(ctx, id)
		if err != nil {
			return nil, nil, nil, err
		}
		end := s.usage.begin()
		guest, err := s.running(op)
		if err == nil {
			ctx, stop := whileAlive(ctx, s.vmm)
			return guest, ctx, func() { stop(); end() }, nil
		}
		end()
		if s.Info().IdleTimeout == 0 || try == wakeTries {
			return nil, nil, nil, err
		}
	}
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
	guest, ctx, stop, err := m.guestOf(ctx, id, "ping")
	if err != nil {
		return agentproto.Ready{}, err
	}
	defer stop()
	ready, err := guest.Ping(ctx)
	return ready, because(ctx, err)
}

// Exec runs a command in a sandbox.
func (m *Manager) Exec(ctx context.Context, id string, req agentclient.ExecRequest) (agentclient.ExecResult, error) {
	guest, ctx, stop, err := m.guestOf(ctx, id, "exec in")
	if err != nil {
		return agentclient.ExecResult{}, err
	}
	defer stop()
	result, err := guest.Exec(ctx, req)
	return result, because(ctx, err)
}

// Eval runs code in a warm interpreter of a sandbox.
func (m *Manager) Eval(ctx context.Context, id, code string, opts agentclient.EvalOptions) (agentclient.EvalResult, error) {
	guest, ctx, stop, err := m.guestOf(ctx, id, "eval in")
	if err != nil {
		return agentclient.EvalResult{}, err
	}
	defer stop()
	result, err := guest.Eval(ctx, code, opts)
	return result, because(ctx, err)
}

// ReadFile copies a file of a sandbox to w.
func (m *Manager) ReadFile(ctx context.Context, id, path, user string, w io.Writer) error {
	guest, ctx, stop, err := m.guestOf(ctx, id, "read a file of")
	if err != nil {
		return err
	}
	defer stop()
	r, err := guest.ReadFile(ctx, path, user)
	if err != nil {
		return because(ctx, err)
	}
	defer r.Close()
	_, err = io.Copy(w, r)
	return because(ctx, err)
}

// WriteFile writes a file in a sandbox.
func (m *Manager) WriteFile(ctx context.Context, id, path, user string, content io.Reader) error {
	guest, ctx, stop, err := m.guestOf(ctx, id, "write a file of")
	if err != nil {
		return err
	}
	defer stop()
	return because(ctx, guest.WriteFile(ctx, path, user, content))
}
