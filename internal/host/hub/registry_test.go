package hub

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ociregistry "github.com/google/go-containerregistry/pkg/registry"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/registry"
)

// served is a registry on loopback. A test can change its answers with s.around.
type served struct {
	*httptest.Server
	host string

	mu     sync.Mutex
	around func(w http.ResponseWriter, r *http.Request, inner http.Handler)
	log    []string // requests, such as "GET /v2/…"
	in     int64    // number of bytes in the bodies of requests
	out    int64    // number of bytes in the bodies of answers to requests for blobs
}

func serve(t *testing.T) *served {
	t.Helper()
	s := &served{}
	inner := ociregistry.New(ociregistry.Logger(log.New(io.Discard, "", 0)))
	s.Server = httptest.NewServer(s.handler(inner))
	t.Cleanup(s.Close)
	s.host = strings.TrimPrefix(s.URL, "http://")
	return s
}

func (s *served) handler(inner http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		around := s.around
		s.log = append(s.log, r.Method+" "+r.URL.Path)
		s.mu.Unlock()
		body := &counted{ReadCloser: r.Body}
		r.Body = body
		out := &countedAnswer{ResponseWriter: w}
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.in += body.n
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
				s.out += out.n
			}
		}()
		if around != nil {
			around(out, r, inner)
			return
		}
		inner.ServeHTTP(out, r)
	})
}

type counted struct {
	io.ReadCloser
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n += int64(n)
	return n, err
}

type countedAnswer struct {
	http.ResponseWriter
	n int64
}

func (c *countedAnswer) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n += int64(n)
	return n, err
}

// set replaces s.around, and returns and clears the log and the counters.
func (s *served) set(around func(http.ResponseWriter, *http.Request, http.Handler)) (log []string, in, out int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	log, in, out = s.log, s.in, s.out
	s.around, s.log, s.in, s.out = around, nil, 0, 0
	return log, in, out
}

// remoteOf returns a reference for snapshots without signatures.
func remoteOf(t *testing.T, reference string) Remote {
	t.Helper()
	r, err := ParseRemote("reference", reference)
	if err != nil {
		t.Fatal(err)
	}
	return r.Under(Off)
}

// hasty shortens the waits of h's hub, and returns h.
func (h *host) hasty() *host {
	h.retryWait, h.stall, h.small = time.Millisecond, 2*time.Second, 0
	return h
}

func (h *host) push(t *testing.T, tag, reference string) Sent {
	t.Helper()
	sent, err := h.Push(t.Context(), "ann", tag, remoteOf(t, reference), false, ignore)
	if err != nil {
		t.Fatal(err)
	}
	return sent
}

func (h *host) pull(t *testing.T, tag, reference string) Pulled {
	t.Helper()
	p, err := h.Pull(t.Context(), "ann", tag, remoteOf(t, reference), ignore)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// baseOf returns the blob of the base image.
func baseOf(a *artifact.Artifact) artifact.Blob {
	return a.Blobs[slices.IndexFunc(a.Blobs, func(b artifact.Blob) bool { return b.Part.Name == artifact.BasePart })]
}

// once(a) returns the sum of the sizes of an artifact's blobs. Files with the same content have one
// blob.
func once(a *artifact.Artifact) (n int64) {
	seen := make(map[string]bool)
	for _, b := range a.Blobs {
		if !seen[b.Digest.String()] {
			n += b.Size
		}
		seen[b.Digest.String()] = true
	}
	return n
}

// leavesNothing fails the test if a failed pull has left a snapshot or an unfinished file. Complete blobs may
// stay.
func (h *host) leavesNothing(t *testing.T, name string, want int) {
	t.Helper()
	if left, err := os.ReadDir(filepath.Join(h.root, "staging")); err != nil || len(left) != 0 {
		t.Errorf("%s: %d files are staged, %v", name, len(left), err)
	}
	if left, err := filepath.Glob(filepath.Join(h.root, "hub", "blobs", ".new-*")); err != nil || len(left) != 0 {
		t.Errorf("%s: %q are left, %v", name, left, err)
	}
	if n := len(h.store.List()); n != want {
		t.Errorf("%s: there are %d snapshots, want %d", name, n, want)
	}
}

// A family of snapshots is copied to another host through a registry. Each side sends only blobs
// that the other side lacks.
func TestPushAndPull(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	a.make(t, "child", "parent", 10, 'c')
	first := a.push(t, "parent", s.host+"/team/py:1")
	_, in, _ := s.set(nil)
	if in < once(first.Artifact) || first.Moved != once(first.Artifact) {
		t.Errorf("the registry received %d bytes, and %d were reported, of %d", in, first.Moved, once(first.Artifact))
	}
	second := a.push(t, "child", s.host+"/team/py:2")
	if shared := first.Blobs[len(first.Blobs)-1].Size; second.Moved == 0 || second.Moved > second.Bytes()-shared {
		t.Errorf("the second push of the family sent %d bytes of %d", second.Moved, second.Bytes())
	}
	s.set(nil)
	again := a.push(t, "child", s.host+"/team/py:3")
	if log, in, _ := s.set(nil); again.Moved != 0 || in != int64(len(again.Manifest)) ||
		slices.ContainsFunc(log, func(r string) bool { return strings.HasPrefix(r, "POST") }) {
		t.Errorf("a push of known blobs sent %d bytes: %q", in, log)
	}
	got := b.pull(t, "", s.host+"/team/py:1")
	if got.Tag != "parent" || got.Digest() != first.Digest() || got.Moved != once(got.Artifact) {
		t.Errorf("%q, %s, %d bytes of %d; pushed %s", got.Tag, got.Digest(), got.Moved, got.Bytes(), first.Digest())
	}
	b.check(t, "parent", map[int64]byte{2: 'p'})
	s.set(nil)
	got = b.pull(t, "kid", s.host+"/team/py@"+second.Digest().String())
	b.check(t, "kid", map[int64]byte{2: 'p', 10: 'c'})
	if _, _, out := s.set(nil); got.Moved >= got.Bytes()-first.Blobs[len(first.Blobs)-1].Size ||
		out != got.Moved+int64(len(got.Config)) {
		t.Errorf("the second pull of the family fetched %d bytes of %d", got.Moved, got.Bytes())
	}
	if left, err := os.ReadDir(filepath.Join(b.root, "hub", "blobs")); err != nil || len(left) != 0 {
		t.Errorf("%d blobs are left, %v", len(left), err)
	}
	if o, err := b.Find(t.Context(), "ann", remoteOf(t, s.host+"/team/py:2")); err != nil || o.Problem() != nil ||
		o.Lacking() == 0 || o.Snapshot.Tag != "child" {
		t.Errorf("%+v, %v", o, err)
	}
}

// cutting lets through some bytes of each answer to a request for a blob, and then breaks the connection.
func cutting(bytes int64) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
			inner.ServeHTTP(w, r)
			return
		}
		inner.ServeHTTP(&cut{w, bytes}, r)
	}
}

type cut struct {
	http.ResponseWriter
	left int64
}

func (c *cut) Write(p []byte) (int, error) {
	if int64(len(p)) > c.left {
		c.ResponseWriter.Write(p[:c.left])
		c.ResponseWriter.(*countedAnswer).ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= int64(len(p))
	return c.ResponseWriter.Write(p)
}

// noise makes a snapshot whose base image cannot be compressed, so that its blob has several large frames.
func (h *host) noise(t *testing.T, tag string) {
	t.Helper()
	h.makeOf(t, tag, "", 2, 'p', func(name string) []byte {
		p := make([]byte, disk)
		for i := range p {
			p[i] = byte((i * i * 2654435761) >> 13)
		}
		if name == "kernel" {
			return p[:4096]
		}
		return p
	})
}

// If the connection breaks during a blob, the pull continues after the last verified frame. A
// registry that does not support ranges sends the whole blob again.
func TestPullResumes(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a := serve(t), newHost(t).hasty()
	a.noise(t, "parent")
	sent := a.push(t, "parent", s.host+"/team/py:1")
	base := baseOf(sent.Artifact)
	if base.Size < 3*artifact.FrameBytes {
		t.Fatalf("the base has only %d bytes", base.Size)
	}
	s.set(cutting(artifact.FrameBytes + 50_000))
	b := newHost(t).hasty()
	got := b.pull(t, "", s.host+"/team/py:1")
	b.check(t, "parent", map[int64]byte{2: 'p'})
	log, _, _ := s.set(nil)
	tries := 0
	for _, r := range log {
		if r == "GET /v2/team/py/blobs/"+base.Digest.String() {
			tries++
		}
	}
	if tries < 4 || got.Moved > got.Bytes()+4*60_000 {
		t.Errorf("%d requests for the base, and %d bytes for %d", tries, got.Moved, got.Bytes())
	}
	c, broken := newHost(t).hasty(), 0
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		r.Header.Del("Range")
		if strings.HasSuffix(r.URL.Path, base.Digest.Encoded()) {
			if broken++; broken == 2 { // the first request is for the index
				inner.ServeHTTP(&cut{w, 100_000}, r)
			}
		}
		inner.ServeHTTP(w, r)
	})
	c.pull(t, "", s.host+"/team/py:1")
	c.check(t, "parent", map[int64]byte{2: 'p'})
	if broken != 3 {
		t.Errorf("%d requests for the base", broken)
	}
}

// If the registry fails during a pull, neither a snapshot nor an unfinished file is left. The next
// pull fetches only the missing blobs.
func TestInterruptedPull(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).hasty()
	a.noise(t, "parent")
	sent := a.push(t, "parent", s.host+"/team/py:1")
	base := baseOf(sent.Artifact)
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if strings.HasSuffix(r.URL.Path, base.Digest.Encoded()) {
			time.Sleep(100 * time.Millisecond) // the other blobs arrive first
			inner.ServeHTTP(&cut{w, 1000}, r)
		}
		inner.ServeHTTP(w, r)
	})
	var failed *RegistryError
	if _, err := b.Pull(t.Context(), "ann", "", remoteOf(t, s.host+"/team/py:1"), ignore); !errors.As(err, &failed) {
		t.Fatal(err)
	}
	b.leavesNothing(t, "a registry that fails", 0)
	b.store.Close()
	b.open(t)
	b.hasty()
	s.set(nil)
	got := b.pull(t, "", s.host+"/team/py:1")
	b.check(t, "parent", map[int64]byte{2: 'p'})
	if log, _, _ := s.set(nil); got.Moved > base.Size+10_000 {
		t.Errorf("the second try fetched %d bytes, the missing blob has %d: %q", got.Moved, base.Size, log)
	}
	c := newHost(t).hasty()
	ctx, cancel := context.WithCancel(t.Context())
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if strings.HasSuffix(r.URL.Path, base.Digest.Encoded()) {
			cancel()
		}
		inner.ServeHTTP(w, r)
	})
	if _, err := c.Pull(ctx, "ann", "", remoteOf(t, s.host+"/team/py:1"), ignore); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	c.leavesNothing(t, "a client that leaves", 0)
}

// If the disk has damaged a blob in the cache, one pull fails, and the next pull fetches the blob.
func TestDamagedCache(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	sent := a.push(t, "parent", s.host+"/team/py:1")
	if err := os.WriteFile(b.cache.blob(sent.Blobs[0].Digest), make([]byte, sent.Blobs[0].Size), 0o600); err != nil {
		t.Fatal(err)
	}
	var bad *artifact.Error
	if _, err := b.Pull(t.Context(), "ann", "", remoteOf(t, s.host+"/team/py:1"), ignore); !errors.As(err, &bad) {
		t.Error(err)
	}
	b.leavesNothing(t, "a damaged blob", 0)
	b.pull(t, "", s.host+"/team/py:1")
}

// If the cache drops a blob during a pull, the pull still has the blob open. So it need not fetch
// the blob later, when it holds a place for decompression.
func TestCachedBlobsStayOpen(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	sent := a.push(t, "parent", s.host+"/team/py:1")
	base := baseOf(sent.Artifact)
	p, err := os.ReadFile(a.cache.blob(base.Digest))
	if err == nil {
		err = os.WriteFile(b.cache.blob(base.Digest), p, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if strings.HasSuffix(r.URL.Path, sent.Blobs[0].Digest.Encoded()) {
			b.cache.remove(base.Digest)
		}
		inner.ServeHTTP(w, r)
	})
	b.pull(t, "", s.host+"/team/py:1")
	b.check(t, "parent", map[int64]byte{2: 'p'})
	if log, _, _ := s.set(nil); slices.Contains(log, "GET /v2/team/py/blobs/"+base.Digest.String()) {
		t.Error("the cached blob was fetched")
	}
}

// Registries with passwords or tokens serve only clients with credentials. Servers to which a
// registry redirects a client receive no credentials.
func TestRegistryLogins(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	for _, tokens := range []bool{false, true} {
		s, elsewhere := serve(t), ""
		open := ociregistry.New(ociregistry.Logger(log.New(io.Discard, "", 0)))
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			elsewhere += r.Header.Get("Authorization")
			open.ServeHTTP(w, r)
		}))
		defer other.Close()
		s.set(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			user, password, _ := r.BasicAuth()
			isUser := user == "me" && password == "secret"
			switch {
			case r.URL.Path == "/token" && isUser:
				fmt.Fprint(w, `{"token": "pass"}`)
			case r.URL.Path == "/token":
				w.WriteHeader(http.StatusUnauthorized)
			case tokens && r.Header.Get("Authorization") != "Bearer pass":
				w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="test"`, s.URL))
				w.WriteHeader(http.StatusUnauthorized)
			case !tokens && !isUser:
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				w.WriteHeader(http.StatusUnauthorized)
			case r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/"):
				http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
			default:
				open.ServeHTTP(w, r)
			}
		})
		a, b := newHost(t).hasty(), newHost(t).hasty()
		a.make(t, "parent", "", 2, 'p')
		to := remoteOf(t, s.host+"/team/py:1")
		var failed *RegistryError
		for _, l := range []*registry.Login{nil, {User: "me", Password: "wrong"}} {
			_, err := a.Push(t.Context(), "ann", "parent", to.With(l), false, ignore)
			if !errors.As(err, &failed) || failed.Status != http.StatusUnauthorized ||
				strings.Contains(err.Error(), "wrong") {
				t.Errorf("tokens %v: %v", tokens, err)
			}
		}
		to = to.With(&registry.Login{User: "me", Password: "secret"})
		if _, err := a.Push(t.Context(), "ann", "parent", to, false, ignore); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Pull(t.Context(), "ann", "", to, ignore); err != nil {
			t.Fatal(err)
		}
		if elsewhere != "" {
			t.Errorf("tokens %v: another server received %q", tokens, elsewhere)
		}
	}
}

// Registries on other hosts need TLS with a certificate that this host trusts.
func TestRegistryTLS(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	inner := ociregistry.New(ociregistry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewUnstartedServer(inner)
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	a, b := newHost(t).hasty(), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	reference := strings.TrimPrefix(server.URL, "https://") + "/team/py:1"
	if _, err := a.Push(t.Context(), "ann", "parent", remoteOf(t, reference), false, ignore); err == nil {
		t.Error("an unknown certificate was trusted")
	}
	for _, h := range []*host{a, b} {
		base := newBase()
		base.TLSClientConfig.RootCAs = x509.NewCertPool()
		base.TLSClientConfig.RootCAs.AddCert(server.Certificate())
		h.base = base
	}
	a.push(t, "parent", reference)
	b.pull(t, "", reference)
	b.check(t, "parent", map[int64]byte{2: 'p'})
}

func TestReferences(t *testing.T) {
	for _, reference := range []string{"", "py", "owner/py", "owner/py:1", "ghcr.io/owner/py",
		"https://ghcr.io/owner/py:1", "ghcr.io/../py:1", "ghcr.io/Owner/py:1",
		"ghcr.io/owner/py@sha256:1", "ghcr.io/owner/py:1 2"} {
		var field *invalid.Error
		if _, err := ParseRemote("to", reference); !errors.As(err, &field) || field.Field != "to" {
			t.Errorf("%q: %v", reference, err)
		}
	}
	digest := "@sha256:" + strings.Repeat("0", 64)
	for _, reference := range []string{"ghcr.io/owner/py:1", "localhost:5000/py:1", "[::1]:5000/py:1",
		"10.0.0.1/a/b/c:x_1", "ghcr.io/owner/py" + digest} {
		if _, err := ParseRemote("to", reference); err != nil {
			t.Error(err)
		}
	}
	a := newHost(t)
	a.make(t, "parent", "", 2, 'p')
	var field *invalid.Error
	to := remoteOf(t, "127.0.0.1:1/py"+digest)
	if _, err := a.Push(t.Context(), "ann", "parent", to, false, ignore); !errors.As(err, &field) {
		t.Error(err)
	}
}
