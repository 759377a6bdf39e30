package v1

import (
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/forkd/forkd/internal/host/invalid"
)

// queries returns the query parameters of each route below /v1, as the document has them. A route
// that is missing here has none.
func queries() map[string][]string {
	page, file := []string{"limit", "cursor"}, []string{"path", "username"}
	return map[string][]string{
		"GET /v1/snapshots":                             page,
		"DELETE /v1/snapshots/{tag}":                    {"cascade", "force"},
		"GET /v1/sandboxes":                             append([]string{"label"}, page...),
		"POST /v1/sandboxes/{id}/processes/{pid}/stdin": {"close"},
		"GET /v1/sandboxes/{id}/logs":                   {"follow", "tail", "since"},
		"GET /v1/sandboxes/{id}/files":                  file,
		"PUT /v1/sandboxes/{id}/files":                  file,
		"DELETE /v1/sandboxes/{id}/files":               file,
		"GET /v1/sandboxes/{id}/files/stat":             file,
		"GET /v1/sandboxes/{id}/files/list":             append([]string{"depth"}, file...),
		"GET /v1/sandboxes/{id}/files/watch":            append([]string{"recursive"}, file...),
		"GET /v1/sandboxes/{id}/archive":                file,
		"PUT /v1/sandboxes/{id}/archive":                file,
		"GET /v1/events":                                {"after", "sandbox", "label"},
		"GET /v1/workspaces":                            page,
	}
}

// queried refuses query parameters that the route does not have. A misspelled filter must not mean
// "everything": some clients delete what they list.
func (a *api) queried(pattern string, h handler) handler {
	if !strings.Contains(pattern, " /v1/") {
		return h
	}
	known := a.queries[pattern]
	return func(w http.ResponseWriter, r *http.Request) error {
		if r.URL.RawQuery == "" {
			return h(w, r)
		}
		q, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			return badRequest("query: %v", err)
		}
		for _, name := range slices.Sorted(maps.Keys(q)) {
			switch {
			case slices.Contains(known, name):
			case len(known) == 0:
				return invalid.Errorf(short(name), "unknown query parameter: this route has none")
			default:
				return invalid.Errorf(short(name), "unknown query parameter: this route has %s", strings.Join(known, ", "))
			}
		}
		return h(w, r)
	}
}

// wholePath refuses paths with an empty part, or with dots: the mux would redirect a request for a
// sandbox without an id to another route, which takes the next part for the id.
func wholePath(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := r.URL.EscapedPath()
		if strings.HasPrefix(p, "/v1/") && path.Clean(p) != strings.TrimSuffix(p, "/") {
			writeProblem(w, badRequest("%s %s: a part of the path, such as an id or a tag, is empty or made of dots", r.Method, short(p)))
			return
		}
		next.ServeHTTP(w, r)
	})
}
