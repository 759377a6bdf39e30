package v1

import (
	"net/http"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/workspace"
)

// permitted refuses a request of a client without a scope, or that may not know of what the path names.
func (a *api) permitted(r *http.Request, want auth.Scope) error {
	if err := auth.From(r.Context()).Need(want); err != nil {
		return err
	}
	return a.within(r)
}

// within returns an error as if it were not there for what the path of a request names and its
// maker may not know of.
func (a *api) within(r *http.Request) error {
	if id := r.PathValue("id"); id != "" {
		return a.Manager.Reach(r.Context(), id)
	}
	p := sandbox.PrefixOf(r.Context())
	if p == "" {
		return nil
	}
	if tag := r.PathValue("tag"); tag != "" {
		return a.Manager.MayUse(r.Context(), tag)
	}
	if name := r.PathValue("name"); name != "" {
		w, err := a.Workspaces.Get(name)
		if err == nil && !a.mayKnow(p, w) {
			err = &workspace.Error{Name: name}
		}
		return err
	}
	return nil
}

// mayKnow reports whether a workspace is within a prefix: by its name, and by the labels of its
// sandbox as long as that is there.
func (a *api) mayKnow(p sandbox.Prefix, w workspace.Info) bool {
	box, err := a.Manager.Get(w.SandboxID)
	return p.HasTag(w.Name) && (err != nil || p.HasLabels(box.Info().Labels))
}
