package v1

import (
	"net/http"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/host/tenancy"
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
		return a.view(r).Reach(id)
	}
	if tag := r.PathValue("tag"); tag != "" {
		return a.view(r).HasSnapshot(tag)
	}
	if name := r.PathValue("name"); name != "" {
		_, err := a.view(r).Workspace(name)
		return err
	}
	return nil
}

// view returns what the client of a request may know of.
func (a *api) view(r *http.Request) *tenancy.View { return a.Face.View(r.Context()) }
