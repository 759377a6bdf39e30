package v1

import (
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/invalid"
)

// checkQuery refuses unknown query parameters. A misspelled filter must not select everything,
// because a client may delete the sandboxes that it lists.
func checkQuery(row route, r *http.Request) error {
	if r.URL.RawQuery == "" || !strings.Contains(row.pattern, " /v1/") {
		return nil
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return face.BadRequest("query: %v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		switch {
		case slices.Contains(row.query, name):
		case len(row.query) == 0:
			return invalid.Errorf(short(name), "unknown query parameter: this route has none")
		default:
			return invalid.Errorf(short(name), "unknown query parameter: this route has %s", strings.Join(row.query, ", "))
		}
	}
	return nil
}

// secsQuery returns the duration that a query parameter gives as seconds, at least 0 and at most
// the maximum (most). If the query lacks this parameter, secsQuery returns the default (absent).
func secsQuery(r *http.Request, name string, absent, most time.Duration) (time.Duration, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return absent, nil
	}
	secs, err := strconv.ParseFloat(text, 64)
	if err != nil || !(secs >= 0 && secs <= most.Seconds()) { // secs may be NaN
		return 0, invalid.Errorf(name, "%.100q: want 0 to %g seconds", text, most.Seconds())
	}
	return time.Duration(secs * float64(time.Second)), nil
}

// wholePath refuses paths with a part that is empty, "." or "..". If the id in a sandbox's path
// were empty, the mux would redirect to the path without the empty part. The next part of the path
// would then become the id.
func wholePath(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := r.URL.EscapedPath()
		if strings.HasPrefix(p, "/v1/") && path.Clean(p) != strings.TrimSuffix(p, "/") {
			face.WriteProblem(w, face.BadRequest("%s %s: a part of the path, such as an id or a tag, is empty or made of dots", r.Method,
				short(p)))
			return
		}
		next.ServeHTTP(w, r)
	})
}
