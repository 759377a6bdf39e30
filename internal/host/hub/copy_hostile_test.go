package hub

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/registry"
)

// A hostile source cannot make Copy write a damaged blob or a tag to another registry. The error
// names the source and the reason.
func TestCopyFromHostileRegistries(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a := serve(t), newHost(t).hasty()
	a.noise(t, "parent")
	sent := a.push(t, "parent", s.host+"/team/py:1")
	base, state := baseOf(sent.Artifact), sent.Blobs[0]
	stop := make(chan struct{})
	defer close(stop)
	type around = func(http.ResponseWriter, *http.Request, http.Handler)
	// of(b, f) returns a registry in which f answers requests for the content of the blob b.
	of := func(b artifact.Blob, f func(w http.ResponseWriter, r *http.Request, content []byte)) around {
		return func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, b.Digest.Encoded()) {
				inner.ServeHTTP(w, r)
				return
			}
			rec := &recorder{header: make(http.Header)}
			inner.ServeHTTP(rec, r)
			f(w, r, rec.body.Bytes())
		}
	}
	send := func(b artifact.Blob, status int, change func(p []byte) []byte) around {
		return of(b, func(w http.ResponseWriter, _ *http.Request, p []byte) {
			p = change(p)
			w.Header().Set("Content-Length", strconv.Itoa(len(p)))
			w.WriteHeader(status)
			w.Write(p)
		})
	}
	whole := func(a around) around { // without ranges
		return func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			r.Header.Del("Range")
			a(w, r, inner)
		}
	}
	flip := func(p []byte) []byte { p[len(p)/2] ^= 1; return p }
	cutOff := func(p []byte) []byte { return p[:len(p)/2] }
	longer := func(p []byte) []byte { return append(p, 0) }
	const part, all = http.StatusPartialContent, http.StatusOK
	for name, c := range map[string]struct {
		around around
		want   string
	}{
		"a flipped bit in a frame":     {send(base, part, flip), "differs from its digest"},
		"a flipped bit without ranges": {whole(send(base, all, flip)), "its digest is"},
		"a flipped bit at the end": {whole(send(base, all, func(p []byte) []byte { p[len(p)-1] ^= 1; return p })),
			"its digest is"},
		"a flipped bit in a state": {send(state, part, flip), "digest"},
		"a shorter blob":           {send(base, part, cutOff), "unexpected EOF"},
		"a shorter blob, unranged": {whole(send(base, all, cutOff)), "in the place of"},
		"a longer blob":            {send(base, part, longer), "in the place of"},
		"a longer blob, unranged":  {whole(send(base, all, longer)), "in the place of"},
		"a missing blob":           {send(base, http.StatusNotFound, cutOff), "404"},
		"a redirect to another host": {of(base, func(w http.ResponseWriter, r *http.Request, _ []byte) {
			http.Redirect(w, r, "http://192.0.2.1/x", http.StatusTemporaryRedirect)
		}), "has no TLS"},
		"a blob that never begins": {of(base, func(http.ResponseWriter, *http.Request, []byte) { <-stop }),
			"too little data"},
		"another manifest": {func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			if strings.Contains(r.URL.Path, "/manifests/1") {
				w.Write([]byte(`{"schemaVersion":2}`))
				return
			}
			inner.ServeHTTP(w, r)
		}, "such as a container image"},
	} {
		d, b := serve(t), newHost(t).hasty()
		d.set(patient)
		b.tries = 2
		s.set(c.around)
		_, err := b.Copy(t.Context(), "ann", remoteOf(t, s.host+"/team/py:1"), remoteOf(t, d.host+"/team/py:1"), ignore)
		var bad *artifact.Error
		var failed *RegistryError
		if !errors.As(err, &bad) && !errors.As(err, &failed) || !strings.Contains(fmt.Sprint(err), c.want) ||
			failed != nil && failed.Registry != s.host {
			t.Errorf("%s: %.2000v, want %q of %s", name, err, c.want, s.host)
		}
		log, _, _ := d.set(nil)
		for _, r := range log {
			if strings.HasPrefix(r, http.MethodPut+" ") && strings.Contains(r, "/manifests/") {
				t.Errorf("%s: the other registry got %s", name, r)
			}
		}
		resp, err := http.Head(d.URL + "/v2/team/py/blobs/" + base.Digest.String())
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if !strings.Contains(name, "state") && resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: the other registry has the blob", name)
		}
		b.hasNoFiles(t)
	}
}

// patient receives all of a request before it passes the request on. The registry of go-containerregistry serves no
// other request while it waits for the rest of a blob.
func patient(w http.ResponseWriter, r *http.Request, inner http.Handler) {
	p, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(p))
	inner.ServeHTTP(w, r)
}

// A slow source is not taken for a slow target. If a copy is too slow for a long time, it ends.
func TestSlowCopy(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, d, a, b := serve(t), serve(t), newHost(t).hasty(), newHost(t).hasty()
	a.noise(t, "parent")
	base := baseOf(a.push(t, "parent", s.host+"/team/py:1").Artifact)
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if !strings.HasSuffix(r.URL.Path, base.Digest.Encoded()) {
			inner.ServeHTTP(w, r)
			return
		}
		for range base.Size {
			if _, err := w.Write([]byte{0}); err != nil {
				return
			}
			w.(*countedAnswer).ResponseWriter.(http.Flusher).Flush()
			time.Sleep(5 * time.Millisecond)
		}
	})
	d.set(patient)
	b.stall, b.pace = time.Hour, 200*time.Millisecond
	var failed *RegistryError
	from, to := remoteOf(t, s.host+"/team/py:1"), remoteOf(t, d.host+"/team/py:1")
	if _, err := b.Copy(t.Context(), "ann", from, to, ignore); !errors.As(err, &failed) || !errors.Is(err, errSlow) ||
		failed.Registry != s.host {
		t.Error(err)
	}
	b.stall, b.pace, b.tries = time.Second, time.Hour, 2
	if _, err := b.Copy(t.Context(), "ann", from, to, ignore); !errors.As(err, &failed) ||
		!errors.Is(err, registry.ErrStalled) ||
		failed.Registry != s.host {
		t.Error(err)
	}
	if hasTag(t, d, "team/py", "1") {
		t.Error("there is a tag")
	}
}

// A copy ends after a day, even if the source describes a snapshot that takes longer to copy.
func TestCopyEndsAfterADay(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, d, a, b := serve(t), serve(t), newHost(t).hasty(), newHost(t).hasty()
	a.noise(t, "parent")
	base := baseOf(a.push(t, "parent", s.host+"/team/py:1").Artifact)
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if strings.HasSuffix(r.URL.Path, base.Digest.Encoded()) {
			<-r.Context().Done()
		}
		inner.ServeHTTP(w, r)
	})
	d.set(patient)
	b.longest = 100 * time.Millisecond
	var failed *RegistryError
	_, err := b.Copy(t.Context(), "ann", remoteOf(t, s.host+"/team/py:1"), remoteOf(t, d.host+"/team/py:1"), ignore)
	if !errors.As(err, &failed) || !errors.Is(err, errLong) || failed.Registry != s.host {
		t.Error(err)
	}
	s.set(nil)
	if hasTag(t, d, "team/py", "1") {
		t.Error("there is a tag")
	}
	b.longest = longest
	b.copyTo(t, s.host+"/team/py:1", d.host+"/team/py:1")
}

// A target may redirect an upload once. It cannot make the daemon fetch a blob from the source again
// and again by further redirects.
func TestCopyFollowsOneRedirect(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a := serve(t), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	a.push(t, "parent", s.host+"/team/py:1")
	for _, hops := range []int{1, 2, 100} {
		d, b := serve(t), newHost(t).hasty()
		b.tries = 2
		var mu sync.Mutex
		most := 0
		d.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			hop, _ := strconv.Atoi(r.URL.Query().Get("hop"))
			if r.Method == http.MethodPatch {
				mu.Lock()
				most = max(most, hop)
				mu.Unlock()
				if hop < hops {
					_, _ = io.Copy(io.Discard, r.Body)
					http.Redirect(w, r, fmt.Sprintf("%s?hop=%d", r.URL.Path, hop+1), http.StatusTemporaryRedirect)
					return
				}
			}
			inner.ServeHTTP(w, r)
		})
		_, err := b.Copy(t.Context(), "ann", remoteOf(t, s.host+"/team/py:1"), remoteOf(t, d.host+"/team/py:1"), ignore)
		var failed *RegistryError
		if refused := errors.As(err, &failed) && strings.Contains(err.Error(), errLed.Error()); refused != (hops > 1) {
			t.Errorf("%d redirects: %v", hops, err)
		}
		if most != 1 {
			t.Errorf("%d redirects of an upload were followed", most)
		}
	}
}
