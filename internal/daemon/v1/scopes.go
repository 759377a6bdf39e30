package v1

import (
	"net/http"
	"strings"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/workspace"
)

// portRoute is how the document names the ports of guests that are reached by path, and portScope
// the scope of all ways to them.
const (
	portRoute = "GET /v1/sandboxes/{id}/proxy/{port}/{path}"
	portScope = auth.Run
)

// open is the scope of routes that everybody may use.
const open auth.Scope = 0

// scopes says which scope each route wants. Read shows what there is and nothing of what is in a
// sandbox; run uses sandboxes; admin reaches beyond them: to files of the host, and to snapshots
// that others fork from. A route that is missing here wants admin.
func scopes() map[string]auth.Scope {
	return map[string]auth.Scope{
		"GET /healthz":                             open,
		"GET /readyz":                              open,
		"GET /healthz/{$}":                         open,
		"/":                                        open, // no route
		"GET /version":                             auth.Read,
		"GET /openapi.yaml":                        open,
		"GET /openapi.json":                        open,
		"GET /docs":                                open,
		"GET /metrics":                             auth.Read,
		"GET /v1/snapshots":                        auth.Read,
		"POST /v1/snapshots":                       auth.Admin, // reads kernels and disks of the host
		"DELETE /v1/snapshots/{tag}":               auth.Admin,
		"GET /v1/snapshots/{tag}/info":             auth.Read,
		"POST /v1/snapshots/{tag}/compact":         auth.Admin,
		"POST /v1/snapshots/{tag}/verify":          auth.Run,
		"POST /v1/forks":                           auth.Run,
		"GET /v1/sandboxes":                        auth.Read,
		"POST /v1/sandboxes":                       auth.Run,
		"GET /v1/sandboxes/{id}":                   auth.Read,
		"DELETE /v1/sandboxes/{id}":                auth.Run,
		"POST /v1/sandboxes/{id}/ping":             auth.Run, // brings a suspended one back
		"POST /v1/sandboxes/{id}/exec":             auth.Run,
		"POST /v1/sandboxes/{id}/eval":             auth.Run,
		"POST /v1/sandboxes/{id}/eval/interrupt":   auth.Run,
		"POST /v1/sandboxes/{id}/eval/restart":     auth.Run,
		"GET /v1/sandboxes/{id}/stats":             auth.Read,
		"GET /v1/sandboxes/{id}/console":           auth.Run, // what a guest wrote
		"GET /v1/sandboxes/{id}/logs":              auth.Run,
		"GET /v1/sandboxes/{id}/network":           auth.Read,
		"PUT /v1/sandboxes/{id}/network":           auth.Run,
		"GET /v1/sandboxes/{id}/limits":            auth.Read,
		"PUT /v1/sandboxes/{id}/limits":            auth.Run,
		"GET /v1/sandboxes/{id}/files":             auth.Run,
		"PUT /v1/sandboxes/{id}/files":             auth.Run,
		"DELETE /v1/sandboxes/{id}/files":          auth.Run,
		"GET /v1/sandboxes/{id}/files/stat":        auth.Run,
		"GET /v1/sandboxes/{id}/files/list":        auth.Run,
		"GET /v1/sandboxes/{id}/files/watch":       auth.Run,
		"POST /v1/sandboxes/{id}/files/mkdir":      auth.Run,
		"POST /v1/sandboxes/{id}/files/move":       auth.Run,
		"GET /v1/sandboxes/{id}/archive":           auth.Run,
		"PUT /v1/sandboxes/{id}/archive":           auth.Run,
		"GET /v1/sandboxes/{id}/tcp/{port}":        portScope,
		portRoute:                                  portScope,
		"POST /v1/sandboxes/{id}/ports/{port}/url": portScope,
		"POST /v1/sandboxes/{id}/branch":           auth.Run,
		"POST /v1/sandboxes/{id}/rollback":         auth.Run,
		"POST /v1/sandboxes/{id}/pause":            auth.Run,
		"POST /v1/sandboxes/{id}/resume":           auth.Run,
		"POST /v1/sandboxes/{id}/suspend":          auth.Run,
		"PATCH /v1/sandboxes/{id}/labels":          auth.Run,
		"GET /v1/events":                           auth.Read,
		"GET /v1/workspaces":                       auth.Read,
		"POST /v1/workspaces":                      auth.Run,
		"GET /v1/workspaces/{name}":                auth.Read,
		"DELETE /v1/workspaces/{name}":             auth.Run,
		"POST /v1/workspaces/{name}/suspend":       auth.Run,
		"POST /v1/workspaces/{name}/resume":        auth.Run,

		"GET /v1/sandboxes/{id}/exec":                    auth.Run,
		"GET /v1/sandboxes/{id}/processes":               auth.Run,
		"GET /v1/sandboxes/{id}/processes/{pid}/attach":  auth.Run,
		"POST /v1/sandboxes/{id}/processes/{pid}/stdin":  auth.Run,
		"POST /v1/sandboxes/{id}/processes/{pid}/signal": auth.Run,
		"POST /v1/sandboxes/{id}/processes/{pid}/resize": auth.Run,
	}
}

// isOpen reports whether a path is that of an open route.
func (a *api) isOpen(path string) bool {
	want, ok := a.scopes["GET "+strings.TrimSuffix(path, "/")]
	return ok && want == open
}

// scoped lets a handler be called by those who have the scope of its route, and may know of what
// its path names.
func (a *api) scoped(pattern string, h handler) handler {
	want, ok := a.scopes[pattern]
	if !ok {
		want = auth.Admin
	}
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := auth.From(r.Context()).Need(want); err != nil {
			return err
		}
		if err := a.within(r); err != nil {
			return err
		}
		return h(w, r)
	}
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
