package v1

import (
	"net/http"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// hooksOf returns the hooks in a request, with their defaults. A nil request has no hooks.
func hooksOf(h *apiv1.Hooks) *snapshot.Hooks {
	if h == nil {
		return nil
	}
	one := func(h *apiv1.Hook) *snapshot.Hook { return (*snapshot.Hook)(h) }
	hooks := snapshot.Hooks{BeforeBranch: one(h.BeforeBranch), AfterFork: one(h.AfterFork),
		BeforeSuspend: one(h.BeforeSuspend), AfterResume: one(h.AfterResume)}.Filled()
	return &hooks
}

func hooksFor(i sandbox.Info) apiv1.Hooks {
	one := func(h *snapshot.Hook) *apiv1.Hook { return (*apiv1.Hook)(h) }
	h := i.Hooks
	return apiv1.Hooks{BeforeBranch: one(h.BeforeBranch), AfterFork: one(h.AfterFork),
		BeforeSuspend: one(h.BeforeSuspend), AfterResume: one(h.AfterResume)}
}

func (a *api) getHooks(r *http.Request) (apiv1.Hooks, error) {
	return described(hooksFor)(a.view(r).Sandbox(r.PathValue("id")))
}

func (a *api) setHooks(r *http.Request, req *apiv1.Hooks) (apiv1.Hooks, error) {
	return described(hooksFor)(a.view(r).SetHooks(r.Context(), r.PathValue("id"), *hooksOf(req)))
}
