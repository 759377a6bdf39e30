package v1

import (
	"context"
	"net/http"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/host/agentclient"
)

func (a *api) interruptEval(r *http.Request, req *apiv1.InterpreterRequest) (answer apiv1.Interrupted, err error) {
	err = a.onInterpreter(r, "interrupt the interpreter of", func(ctx context.Context,
		guest *agentclient.Client) (err error) {
		answer.Interrupted, err = guest.Interrupt(ctx, req.ContextID)
		return err
	})
	return answer, err
}

func (a *api) restartEval(r *http.Request, req *apiv1.InterpreterRequest) (apiv1.Restarted, error) {
	err := a.onInterpreter(r, "restart the interpreter of", func(ctx context.Context, guest *agentclient.Client) error {
		return guest.Restart(ctx, req.ContextID)
	})
	return apiv1.Restarted{Restarted: true}, err
}

func (a *api) onInterpreter(r *http.Request, op string, f func(context.Context, *agentclient.Client) error) error {
	ctx, cancel := context.WithTimeout(r.Context(), maxRestart)
	defer cancel()
	return a.onGuest(ctx, r, op, f)
}
