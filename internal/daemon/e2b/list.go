package e2b

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// maxPage is the default and the maximum number of elements on a page of a list.
const maxPage = 100

// filter selects sandboxes of a list.
type filter struct {
	metadata map[string]string
	states   []string
	template string
	after    time.Time
}

// filter returns the filter of a request.
func (a *Server) filter(r *http.Request) (f filter, err error) {
	q := r.URL.Query()
	if f.metadata, err = metadataOf(q.Get("metadata")); err != nil {
		return f, err
	}
	for _, values := range q["state"] {
		for _, s := range strings.Split(values, ",") {
			if s != running && s != paused {
				return f, face.BadRequest("state: %q: want %s, %s or both with a comma between", s, running, paused)
			}
			f.states = append(f.states, s)
		}
	}
	if q.Get("template") != "" {
		if f.template, err = a.existing(r, q.Get("template")); err != nil {
			return f, err
		}
	}
	if q.Has("startedAfter") {
		if f.after, err = time.Parse(time.RFC3339, q.Get("startedAfter")); err != nil {
			return f, face.BadRequest("startedAfter: %v", err)
		}
	}
	return f, nil
}

// metadataOf returns the metadata that a sandbox must have to be listed. The SDKs encode metadata
// three times: each key and value, then all pairs as a form, and the form as the value of a query.
func metadataOf(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	wrong := face.BadRequest("metadata: want key=value pairs with & between, percent-encoded")
	form, err := url.QueryUnescape(text)
	if err != nil {
		return nil, wrong
	}
	pairs := map[string]string{}
	for _, pair := range strings.Split(form, "&") {
		key, value, ok := strings.Cut(pair, "=")
		k, err1 := url.QueryUnescape(key)
		v, err2 := url.QueryUnescape(value)
		if !ok || err1 != nil || err2 != nil {
			return nil, wrong
		}
		pairs[k] = v
	}
	return pairs, nil
}

func (f *filter) lets(i sandbox.Info) bool {
	state := stateOf(i)
	if state == "" || build.IsBuild(i) || len(f.states) > 0 && !slices.Contains(f.states, state) ||
		f.template != "" && !strings.EqualFold(f.template, i.SnapshotTag) || i.Created.Before(f.after) {
		return false
	}
	if len(f.metadata) == 0 {
		return true
	}
	n, _ := annotationOf(i)
	for k, v := range f.metadata {
		if has, ok := n.Metadata[k]; !ok || has != v {
			return false
		}
	}
	return true
}

// list answers with a page of sandboxes, the newest first.
func (a *Server) list(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	f, err := a.filter(r)
	if err != nil {
		return err
	}
	all := slices.DeleteFunc(a.view(r).Sandboxes(), func(i sandbox.Info) bool { return !f.lets(i) })
	if order := q.Get("order"); order == "" || order == "desc" {
		slices.Reverse(all)
	} else if order != "asc" {
		return face.BadRequest("order: %q: want asc or desc", order)
	}
	var up int
	for _, i := range all {
		if stateOf(i) == running {
			up++
		}
	}
	w.Header().Set("X-Total-Running", strconv.Itoa(up))
	page, err := pageOf(w, q, all, func(i sandbox.Info) string { return fmt.Sprintf("%d %s", i.Created.UnixNano(), i.ID) })
	if err != nil {
		return err
	}
	return a.writeSandboxes(w, r, page)
}

// listV1 answers with all running sandboxes, for older SDKs.
func (a *Server) listV1(w http.ResponseWriter, r *http.Request) error {
	f, err := a.filter(r)
	if err != nil {
		return err
	}
	if f.states == nil {
		f.states = []string{running}
	}
	all := slices.DeleteFunc(a.view(r).Sandboxes(), func(i sandbox.Info) bool { return !f.lets(i) })
	slices.Reverse(all)
	return a.writeSandboxes(w, r, all)
}

func (a *Server) writeSandboxes(w http.ResponseWriter, r *http.Request, infos []sandbox.Info) error {
	return face.WriteArray(w, infos, describer(a.view(r)))
}

// pageOf returns the requested page of a list and puts the token of the next page in a header. The
// token contains the name of the page's last element, and its index. So the next page begins at the
// right element even if elements are added or removed between the requests.
func pageOf[T any](w http.ResponseWriter, q url.Values, all []T, name func(T) string) ([]T, error) {
	limit := maxPage
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, face.BadRequest("limit: %q: want 1 to %d", text, maxPage)
		}
		limit = min(n, maxPage)
	}
	if token := q.Get("nextToken"); token != "" {
		last, err := base64.RawURLEncoding.DecodeString(token)
		if err != nil {
			return nil, face.BadRequest("nextToken: it is not one of this API")
		}
		at := slices.IndexFunc(all, func(item T) bool { return name(item) == string(last) })
		if at < 0 { // the element was removed in the meantime
			return nil, face.BadRequest("nextToken: the thing that it follows no longer exists: start again")
		}
		all = all[at+1:]
	}
	if len(all) > limit {
		all = all[:limit]
		w.Header().Set("X-Next-Token", base64.RawURLEncoding.EncodeToString([]byte(name(all[limit-1]))))
	}
	return all, nil
}
