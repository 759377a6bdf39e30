package hub

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/forkd/forkd/internal/sigstore"
)

// paged serves the list of referrers of a registry in pages of n artifacts. If filter is not nil,
// paged uses it to filter the artifacts by type.
func paged(t *testing.T, n int, filter func(want string, d oci.Descriptor) bool) func(http.ResponseWriter,
	*http.Request, http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/referrers/") {
			inner.ServeHTTP(w, r)
			return
		}
		rec := &recorder{header: make(http.Header)}
		inner.ServeHTTP(rec, r)
		var x oci.Index
		if err := json.Unmarshal(rec.body.Bytes(), &x); err != nil {
			t.Error(err)
		}
		slices.SortFunc(x.Manifests, func(a, b oci.Descriptor) int { return cmp.Compare(a.Digest, b.Digest) })
		want := r.URL.Query().Get("artifactType")
		if filter != nil && want != "" {
			w.Header().Set("OCI-Filters-Applied", "artifactType")
			x.Manifests = slices.DeleteFunc(x.Manifests, func(d oci.Descriptor) bool { return !filter(want, d) })
		}
		start, _ := strconv.Atoi(r.URL.Query().Get("last"))
		end := min(start+n, len(x.Manifests))
		if end < len(x.Manifests) {
			q := r.URL.Query()
			q.Set("last", strconv.Itoa(end))
			// The link names the wrong server and path, as links behind some proxies do.
			w.Header().Add("Link", `<https://attacker.example/v2/other/referrers/x?n=1>; rel="first"`)
			w.Header().Add("Link", fmt.Sprintf(`<https://attacker.example%s?%s>; rel="next"`, r.URL.Path, q.Encode()))
		}
		x.Manifests = x.Manifests[start:end]
		p, err := json.Marshal(x)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", oci.MediaTypeImageIndex)
		w.Write(p)
	}
}

// A signature is found on any page of the list of referrers. If the pages of a list do not end, or
// its links cannot be followed, the pull fails, because the snapshot may have signatures.
func TestReferrersInPages(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	ann, eve := newKey(t), newKey(t)
	s, a, b := serveReferrers(t), newHost(t).hasty(), newHost(t).hasty().trusting(t, ann)
	a.make(t, "parent", "", 2, 'p')
	sent := a.push(t, "parent", s.host+"/team/py:1")
	a.plant(t, s.host+"/team/py:1", sent.Digest(), bundleFor(t, ann, sent.Digest()))
	for range 9 {
		a.plant(t, s.host+"/team/py:1", sent.Digest(), bundleFor(t, eve, sent.Digest()))
	}
	ref := strictly(t, s.host+"/team/py:1")
	lists := func() (n int) {
		log, _, _ := s.set(nil)
		for _, r := range log {
			if strings.Contains(r, "/referrers/") {
				n++
			}
		}
		return n
	}
	// The registry of go-containerregistry lists the type of the configuration as the type of the artifact. So a filter
	// that compares these fields hides all signatures.
	broken := func(want string, d oci.Descriptor) bool { return d.ArtifactType == want }
	works := func(want string, _ oci.Descriptor) bool { return want == sigstore.BundleType }
	for name, c := range map[string]struct {
		size   int
		filter func(string, oci.Descriptor) bool
		pages  int
	}{
		"no filter":     {1, nil, 10},
		"filter":        {3, works, 4},
		"all":           {10, works, 1},
		"broken filter": {5, broken, 1 + 2},
	} {
		s.set(paged(t, c.size, c.filter))
		if got := mustPull(t, b, ref); got.Verdict.Key.Name != "ann" {
			t.Errorf("%s: %+v", name, got.Verdict)
		}
		if n := lists(); n != c.pages {
			t.Errorf("%s: %d pages were fetched, want %d", name, n, c.pages)
		}
		b.remove(t, "parent")
	}
	link := func(text string) func(http.ResponseWriter, *http.Request, http.Handler) {
		return func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			if strings.Contains(r.URL.Path, "/referrers/") {
				w.Header().Set("Link", text)
				w.Write([]byte(`{"schemaVersion": 2, "manifests": []}`))
				return
			}
			inner.ServeHTTP(w, r)
		}
	}
	second := func(status int) func(http.ResponseWriter, *http.Request, http.Handler) {
		return func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			if r.URL.Query().Get("last") != "" {
				w.WriteHeader(status)
				return
			}
			link(`<?last=1>; rel="next"`)(w, r, inner)
		}
	}
	long := func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if strings.Contains(r.URL.Path, "/referrers/") {
			w.Header().Set("Link", `<?last=1>; rel=next`)
			w.Write([]byte(`{"schemaVersion": 2, "manifests": []}` + strings.Repeat(" ", maxReferrers/2)))
			return
		}
		inner.ServeHTTP(w, r)
	}
	for name, c := range map[string]struct {
		around func(http.ResponseWriter, *http.Request, http.Handler)
		want   string
		lists  int // number of fetched pages; 0: not compared, because failed requests are repeated
	}{
		"a circle":         {link(`<?last=1>; rel="next"`), "more than 64 pages", maxPages},
		"no query":         {link(`<https://attacker.example/>; rel="next"`), "is not usable", 1},
		"no URL":           {link(`<http://[>; rel="next"`), "is not usable", 1},
		"long pages":       {long, "more than", 2},
		"a lost page":      {second(http.StatusNotFound), "404", 2},
		"a failed page":    {second(http.StatusInternalServerError), "500", 0},
		"no link to next":  {link(`<?last=1>; rel="nextish", <?last=2>; rel="prev"`), "has no signature", 1},
		"a link, unquoted": {link(`<?last=1>;rel=next`), "more than 64 pages", maxPages},
	} {
		s.set(c.around)
		_, err := b.Pull(t.Context(), "ann", "", ref, ignore)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if n := lists(); c.lists > 0 && n != c.lists {
			t.Errorf("%s: %d pages were fetched, want %d", name, n, c.lists)
		}
		b.isClean(t, name, 0)
	}
	if got := mustPull(t, b, ref); got.Verdict.Key.Name != "ann" {
		t.Errorf("%+v", got.Verdict)
	}
}

// Even if a registry sends its list of signatures at the slowest permitted pace, it does not take
// up a place for pulls for hours.
func TestSlowSignatures(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serveReferrers(t), newHost(t).hasty(), newHost(t).hasty().trusting(t, newKey(t))
	a.make(t, "parent", "", 2, 'p')
	a.push(t, "parent", s.host+"/team/py:1")
	b.proofsTime, b.stall = 50*time.Millisecond, time.Hour
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if strings.Contains(r.URL.Path, "/referrers/") {
			<-r.Context().Done()
			return
		}
		inner.ServeHTTP(w, r)
	})
	_, err := b.Pull(t.Context(), "ann", "", strictly(t, s.host+"/team/py:1"), ignore)
	if err == nil || !strings.Contains(err.Error(), errSlowProofs.Error()) {
		t.Errorf("a pull from a slow registry: %v", err)
	}
}
