package vmfake

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"slices"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// Guest is the agent of every fake VM. The fields of All decide what it does.
type Guest struct{ All *VMMs }

var errNoGuest = errors.New("a fake VM has no guest")

func (g Guest) told(req agentproto.Request) error {
	switch {
	case g.All.Told != nil:
		return g.All.Told(req)
	case slices.Contains([]agentproto.Op{agentproto.OpFreeze, agentproto.OpThaw, agentproto.OpBusy, agentproto.OpMount,
		agentproto.OpUnmount}, req.Op):
		return nil
	}
	return errNoGuest
}

// Sync hangs if SyncHangs is set.
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

// SetDefaults refuses the user that NoUser names, like an agent of a guest without that account.
func (g Guest) SetDefaults(_ context.Context, d agentclient.Defaults) error {
	g.All.Mu.Lock()
	defer g.All.Mu.Unlock()
	if d.User != "" && d.User == g.All.NoUser {
		return &agentclient.Error{Op: "set defaults", Code: agentclient.CodeInvalid, Message: "no such user"}
	}
	g.All.Defaults = append(g.All.Defaults, d)
	return nil
}

// Dial connects only to the control port, because tests that use other ports need no guest. If Told
// is nil, the guest supports only OpFreeze, OpThaw, OpBusy, OpMount and OpUnmount.
func (g Guest) Dial(_ context.Context, port uint32) (net.Conn, error) {
	if port != agentproto.ControlPort {
		return nil, errNoGuest
	}
	ours, theirs := net.Pipe()
	go func() {
		defer ours.Close()
		var req agentproto.Request
		if json.NewDecoder(ours).Decode(&req) != nil {
			return
		}
		reply := agentproto.Reply{Busy: req.Op == agentproto.OpBusy && g.All.Busy != nil && g.All.Busy()}
		if err := g.told(req); err != nil {
			reply.Error = err.Error()
		}
		_ = json.NewEncoder(ours).Encode(reply) // an error means that the daemon has given up
	}()
	return theirs, nil
}
