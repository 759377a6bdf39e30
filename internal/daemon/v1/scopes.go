package v1

import (
	"net/http"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/host/tenancy"
)

// permitted returns an error if the client of a request lacks the scope, or may not see the object
// in the path.
func (a *api) permitted(r *http.Request, want auth.Scope) error {
	if err := auth.From(r.Context()).Need(want); err != nil {
		return err
	}
	return a.within(r)
}

// within returns a "not found" error if the client of a request may not see the object that the
// path names.
func (a *api) within(r *http.Request) error {
	if id := r.PathValue("id"); id != "" {
		return a.view(r).Reach(id)
	}
	if tag := r.PathValue("tag"); tag != "" {
		return a.view(r).HasSnapshot(tag)
	}
	if name := r.PathValue("volume"); name != "" {
		return a.view(r).HasVolume(name)
	}
	if name := r.PathValue("name"); name != "" {
		_, err := a.view(r).Workspace(name)
		return err
	}
	return nil
}

// view returns the sandboxes, snapshots, workspaces and volumes that the client of a request may see.
func (a *api) view(r *http.Request) *tenancy.View { return a.Face.View(r.Context()) }
