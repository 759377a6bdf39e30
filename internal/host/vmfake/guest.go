package vmfake

import (
	"context"
	"encoding/json"
	"errors"
	"net"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// Guest is the agent of every fake VM.
type Guest struct{ All *VMMs }

// Sync hangs if it was told to.
func (g Guest) Sync(ctx context.Context) error {
	if g.All.SyncHangs {
		<-ctx.Done()
		return errors.New("broken pipe")
	}
	return nil
}

func (g Guest) Forked(ctx context.Context, f agentproto.Forked) (*agentproto.Unique, error) {
	g.All.Mu.Lock()
	g.All.Forked = append(g.All.Forked, f)
	n, hook, unique := len(g.All.Forked), g.All.ForkedErr, g.All.Unique
	g.All.Mu.Unlock()
	if hook != nil {
		if err := hook(n); err != nil {
			return nil, err
		}
	}
	return unique, nil
}

func (g Guest) Exec(ctx context.Context, _ agentclient.ExecRequest) (agentclient.ExecResult, error) {
	if g.All.Exec != nil {
		return g.All.Exec(ctx), ctx.Err()
	}
	return agentclient.ExecResult{Outcome: agentclient.Exited}, nil
}

func (g Guest) Eval(context.Context, string, agentclient.EvalOptions) (agentclient.EvalResult, error) {
	return agentclient.EvalResult{Error: g.All.EvalErr}, nil
}

// Dial reaches nobody but who is told something: what sandboxes do for those who use their guests
// is tested without a guest.
func (g Guest) Dial(_ context.Context, port uint32) (net.Conn, error) {
	if g.All.Told == nil || port != agentproto.ControlPort {
		return nil, errors.New("a fake VM has no guest")
	}
	ours, theirs := net.Pipe()
	go func() {
		defer ours.Close()
		var req agentproto.Request
		if json.NewDecoder(ours).Decode(&req) != nil {
			return
		}
		var reply agentproto.Reply
		if err := g.All.Told(req); err != nil {
			reply.Error = err.Error()
		}
		_ = json.NewEncoder(ours).Encode(reply) // the daemon may have given up
	}()
	return theirs, nil
}
