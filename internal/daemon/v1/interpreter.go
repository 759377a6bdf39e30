package v1

import (
	"context"
	"net/http"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/host/agentclient"
)

func (a *api) interruptEval(w http.ResponseWriter, r *http.Request) error {
	var answer apiv1.Interrupted
	err := a.onInterpreter(w, r, "interrupt the interpreter of",
		func(ctx context.Context, guest *agentclient.Client, id string) (err error) {
			answer.Interrupted, err = guest.Interrupt(ctx, id)
			return err
		})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, answer)
}

func (a *api) restartEval(w http.ResponseWriter, r *http.Request) error {
	err := a.onInterpreter(w, r, "restart the interpreter of",
		func(ctx context.Context, guest *agentclient.Client, id string) error { return guest.Restart(ctx, id) })
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, apiv1.Restarted{Restarted: true})
}

func (a *api) onInterpreter(w http.ResponseWriter, r *http.Request, op string,
	f func(ctx context.Context, guest *agentclient.Client, id string) error) error {
	var req apiv1.InterpreterRequest
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), maxRestart)
	defer cancel()
	return a.onGuest(ctx, r, op, func(ctx context.Context, guest *agentclient.Client) error {
		return f(ctx, guest, req.ContextID)
	})
}
