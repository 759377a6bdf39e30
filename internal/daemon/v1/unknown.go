package v1

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/forkd/forkd/internal/daemon/face"
)

// short truncates text from a client, for use in an error.
func short(text string) string { return fmt.Sprintf("%.100s", text) }

// unknownRoute answers a request that matches no route. If the path has routes with other methods,
// the answer is 405 and lists these methods (RFC 9110, section 15.5.6). Otherwise the answer is
// 404.
func unknownRoute(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) error {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := mux.Handler(other); pattern != "/" && pattern != "" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) > 0 {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		return face.NewError(http.StatusMethodNotAllowed, fmt.Sprintf("%s %s: method not allowed", r.Method,
			short(r.URL.Path)))
	}
	hint := ""
	if strings.HasSuffix(r.URL.Path, "/") {
		hint = ": an id or a name is missing behind the last '/'"
	}
	return face.NewError(http.StatusNotFound, fmt.Sprintf("%s %s: no such route%s", r.Method, short(r.URL.Path), hint))
}
