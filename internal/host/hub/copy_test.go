package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/host/invalid"
)

// copyTo copies a snapshot without looking at its signatures.
func (h *host) copyTo(t *testing.T, from, to string) Copied {
	t.Helper()
	c, err := h.Copy(t.Context(), "ann", remoteOf(t, from), remoteOf(t, to), ignore)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// hasTag reports whether a repository has a tag. It first removes the test's handler from the
// registry.
func hasTag(t *testing.T, s *served, repo, tag string) bool {
	t.Helper()
	s.set(nil)
	resp, err := http.Get(s.URL + "/v2/" + repo + "/manifests/" + tag)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// hasNoFiles fails the test if a host's cache has blobs, or if its store has a snapshot.
func (h *host) hasNoFiles(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(filepath.Join(h.root, "hub", "blobs"))
	if err != nil || len(left) != 0 || len(h.store.List()) != 0 {
		t.Errorf("%d blobs and %d snapshots are left, %v", len(left), len(h.store.List()), err)
	}
}

// A family of snapshots is copied to another registry, by a host that has none of its files. The
// source sends, and the target receives, only blobs that the target lacks. Copies also work from
// registries without ranges, and for blobs that are fetched with one request.
func TestCopy(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	a := newHost(t).hasty()
	a.noise(t, "parent")
	a.make(t, "child", "parent", 10, 'c')
	for name, c := range map[string]struct {
		small  int64
		around func(http.ResponseWriter, *http.Request, http.Handler)
	}{
		"ranges":      {0, nil},
		"one request": {1 << 30, nil},
		"no ranges": {0, func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			r.Header.Del("Range")
			inner.ServeHTTP(w, r)
		}},
	} {
		s, d, b, p := serve(t), serve(t), newHost(t).hasty(), newHost(t).hasty()
		b.small = c.small
		first := a.push(t, "parent", s.host+"/team/py:1")
		second := a.push(t, "child", s.host+"/team/py:2")
		s.set(c.around)
		got := b.copyTo(t, s.host+"/team/py:1", d.host+"/other/py:one")
		if got.Digest() != first.Digest() || got.Moved != once(first.Artifact) {
			t.Errorf("%s: %s, %d bytes of %d", name, got.Digest(), got.Moved, once(first.Artifact))
		}
		s.set(c.around)
		got = b.copyTo(t, s.host+"/team/py@"+second.Digest().String(), d.host+"/other/py:2")
		if base := baseOf(first.Artifact).Size; got.Moved == 0 || got.Moved > got.Bytes()-base {
			t.Errorf("%s: the second copy of the family sent %d bytes of %d", name, got.Moved, got.Bytes())
		}
		s.set(c.around)
		d.set(nil)
		again := b.copyTo(t, s.host+"/team/py:2", d.host+"/other/py:3")
		log, in, _ := d.set(nil)
		if _, _, out := s.set(nil); again.Moved != 0 || in != 2*int64(len(again.Manifest)) ||
			out != int64(len(again.Config)) ||
			slices.ContainsFunc(log, func(r string) bool { return strings.HasPrefix(r, "POST") }) {
			t.Errorf("%s: a copy of known blobs fetched %d bytes and sent %d: %q", name, out, in, log)
		}
		b.hasNoFiles(t)
		p.pull(t, "", d.host+"/other/py:one")
		p.check(t, "parent", map[int64]byte{2: 'p'})
		p.pull(t, "", d.host+"/other/py:3")
		p.check(t, "child", map[int64]byte{2: 'p', 10: 'c'})
	}
}

// Copy reports the progress of each blob as a push does.
func TestCopyReports(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, d, a := serve(t), serve(t), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	sent := a.push(t, "parent", s.host+"/team/py:1")
	var mu sync.Mutex
	states := make(map[string]int)
	count := func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		states[p.State]++
		if p.Done > p.Bytes {
			t.Errorf("%+v", p)
		}
	}
	seen := seenBlobs(sent.Artifact)
	for n, state := range []string{Pushed, Exists} {
		mu.Lock()
		clear(states)
		mu.Unlock()
		if _, err := a.Copy(t.Context(), "ann", remoteOf(t, s.host+"/team/py:1"),
			remoteOf(t, fmt.Sprintf("%s/team/py:%d", d.host, n)), count); err != nil {
			t.Fatal(err)
		}
		if states[state] != len(seen) {
			t.Errorf("%v, want %s %d times", states, state, len(seen))
		}
	}
}

// A copy goes on if connections to either registry break. A blob that the target has received in
// part is sent again. The source sends only the rest of a blob whose connection has broken.
func TestCopyGoesOn(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, d, a, b := serve(t), serve(t), newHost(t).hasty(), newHost(t).hasty()
	a.noise(t, "parent")
	sent := a.push(t, "parent", s.host+"/team/py:1")
	s.set(cutting(artifact.FrameBytes + 50_000))
	patches := 0
	d.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		d.mu.Lock()
		if r.Method == http.MethodPatch {
			patches++
		}
		first := r.Method == http.MethodPatch && patches <= 2
		d.mu.Unlock()
		if first {
			io.CopyN(io.Discard, r.Body, 1000)
			panic(http.ErrAbortHandler)
		}
		inner.ServeHTTP(w, r)
	})
	b.copyTo(t, s.host+"/team/py:1", d.host+"/team/py:1")
	s.set(nil)
	d.set(nil)
	if patches < len(seenBlobs(sent.Artifact))+3 { // the 3 are the configuration and two failed tries
		t.Errorf("%d uploads of %d blobs", patches, len(seenBlobs(sent.Artifact)))
	}
	b.pull(t, "", d.host+"/team/py:1")
	b.check(t, "parent", map[int64]byte{2: 'p'})
}

// seenBlobs returns the digests of an artifact's blobs.
func seenBlobs(a *artifact.Artifact) map[digest.Digest]bool {
	seen := make(map[digest.Digest]bool)
	for _, b := range a.Blobs {
		seen[b.Digest] = true
	}
	return seen
}

// If a copy fails, or if its client leaves, no tag is written. The next copy sends only the
// remaining blobs.
func TestInterruptedCopy(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a := serve(t), newHost(t).hasty()
	a.noise(t, "parent")
	sent := a.push(t, "parent", s.host+"/team/py:1")
	base := baseOf(sent.Artifact)
	for name, after := range map[string]func(*served, context.CancelFunc){
		"the source fails": func(*served, context.CancelFunc) {
			s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
				if strings.HasSuffix(r.URL.Path, base.Digest.Encoded()) {
					inner.ServeHTTP(&cut{w, 1000}, r)
					return
				}
				inner.ServeHTTP(w, r)
			})
		},
		"the target fails": func(d *served, _ context.CancelFunc) {
			d.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
				if r.Method == http.MethodPatch && r.ContentLength == base.Size {
					panic(http.ErrAbortHandler)
				}
				inner.ServeHTTP(w, r)
			})
		},
		"the tag is refused": func(d *served, _ context.CancelFunc) {
			d.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
				if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/manifests/1") {
					w.WriteHeader(http.StatusForbidden)
					return
				}
				inner.ServeHTTP(w, r)
			})
		},
		"the client leaves": func(_ *served, leave context.CancelFunc) {
			s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
				if strings.HasSuffix(r.URL.Path, base.Digest.Encoded()) {
					leave()
				}
				inner.ServeHTTP(w, r)
			})
		},
	} {
		d, b := serve(t), newHost(t).hasty()
		ctx, cancel := context.WithCancel(t.Context())
		after(d, cancel)
		_, err := b.Copy(ctx, "ann", remoteOf(t, s.host+"/team/py:1"), remoteOf(t, d.host+"/team/py:1"), ignore)
		cancel()
		var failed *RegistryError
		switch {
		case name == "the client leaves":
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		case !errors.As(err, &failed) || (failed.Registry == s.host) != (name == "the source fails"):
			t.Errorf("%s: %v", name, err)
		}
		s.set(nil)
		if hasTag(t, d, "team/py", "1") {
			t.Errorf("%s: there is a tag", name)
		}
		b.hasNoFiles(t)
		again := b.copyTo(t, s.host+"/team/py:1", d.host+"/team/py:1")
		if name == "the tag is refused" && again.Moved != 0 {
			t.Errorf("%s: the next copy sent %d bytes", name, again.Moved)
		}
		if again.Moved > base.Size+1<<20 {
			t.Errorf("%s: the next copy sent %d bytes", name, again.Moved)
		}
		b.pull(t, "", d.host+"/team/py:1")
		b.check(t, "parent", map[int64]byte{2: 'p'})
	}
}

// A copy needs a tag.
func TestCopyNeedsATag(t *testing.T) {
	h := newHost(t)
	to, err := ParseRemote("to", "127.0.0.1:1/py@sha256:"+strings.Repeat("0", 64))
	if err != nil {
		t.Fatal(err)
	}
	var field *invalid.Error
	if _, err := h.Copy(t.Context(), "ann", remoteOf(t, "127.0.0.1:1/py:1"), to, ignore); !errors.As(err, &field) ||
		field.Field != "to" {
		t.Error(err)
	}
}

// In Debian's registry, blobs are mounted between repositories. If Debian's registry is killed
// during a copy from another registry, the next copy to the restarted registry sends only the
// remaining blobs.
func TestCopyToDebianRegistry(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	dir := t.TempDir()
	address, kill := startDebian(t, dir, "")
	s, a, b := serveReferrers(t), newHost(t).hasty(), newHost(t).hasty()
	ann := newKey(t)
	b.trusting(t, ann)
	a.noise(t, "parent")
	sent := a.push(t, "parent", s.host+"/team/py:1")
	a.plant(t, s.host+"/team/py:1", sent.Digest(), bundleFor(t, ann, sent.Digest()))
	from, to := strictly(t, s.host+"/team/py:1"), strictly(t, address+"/team/py:1")
	var killOnce sync.Once
	if _, err := b.Copy(t.Context(), "ann", from, to, func(p Progress) {
		if p.State == Pushed {
			killOnce.Do(kill)
		}
	}); err == nil {
		t.Fatal("a copy to a killed registry has succeeded")
	}
	startDebian(t, dir, address)
	if _, err := b.Find(t.Context(), "ann", to); err == nil {
		t.Error("the interrupted copy has left a tag")
	}
	got, err := b.Copy(t.Context(), "ann", from, to, ignore)
	if err != nil || got.Moved >= once(sent.Artifact) || got.Signatures != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	s.set(nil)
	elsewhere := strictly(t, address+"/elsewhere/py:1")
	mounted, err := newHost(t).hasty().trusting(t, ann).Copy(t.Context(), "ann", to, elsewhere, ignore)
	if err != nil || mounted.Moved != 0 || mounted.Signatures != 1 {
		t.Errorf("%+v, %v", mounted, err)
	}
	if got := mustPull(t, b, elsewhere); got.Digest() != sent.Digest() || got.Verdict.Key.Name != "ann" {
		t.Errorf("%s, %+v", got.Digest(), got.Verdict)
	}
	b.check(t, "parent", map[int64]byte{2: 'p'})
	back := b.copyTo(t, address+"/elsewhere/py:1", s.host+"/back/py:1")
	if back.Digest() != sent.Digest() {
		t.Errorf("%s, pushed %s", back.Digest(), sent.Digest())
	}
}

// A copy notes where its target has each blob. Like a push, it removes old notes.
func TestCopyTrimsNotes(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, d, a, b := serve(t), serve(t), newHost(t).hasty(), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	a.push(t, "parent", s.host+"/team/py:1")
	for i := range maxRecords + 10 {
		if err := os.WriteFile(b.cache.path("pushed", fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.copyTo(t, s.host+"/team/py:1", d.host+"/team/py:1")
	if notes, err := b.cache.list("pushed"); err != nil || len(notes) > maxRecords {
		t.Errorf("%d notes, at most %d, %v", len(notes), maxRecords, err)
	}
}
