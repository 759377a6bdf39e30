package hub

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/artifact"
)

// If a registry is hostile or broken, a pull fails with the reason, in bounded time and space, and
// leaves no snapshot.
func TestHostileRegistries(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).hasty()
	b.tries, b.stall = 2, 300*time.Millisecond
	a.noise(t, "parent")
	sent := a.push(t, "parent", s.host+"/team/py:1")
	a.make(t, "other", "", 3, 'o')
	other := a.push(t, "other", s.host+"/team/py:2")
	base, state := baseOf(sent.Artifact), sent.Blobs[0]
	stop := make(chan struct{})
	defer close(stop)
	forever := func(w http.ResponseWriter, p []byte, pause time.Duration) {
		for {
			select {
			case <-stop:
				return
			case <-time.After(pause):
			}
			if _, err := w.Write(p); err != nil {
				return
			}
			w.(*countedAnswer).ResponseWriter.(http.Flusher).Flush()
		}
	}
	type around = func(http.ResponseWriter, *http.Request, http.Handler)
	// of(part, f) returns a registry in which f answers each request for a path that contains the
	// text in part.
	of := func(part string, f http.HandlerFunc) around {
		return func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, part) {
				f(w, r)
				return
			}
			inner.ServeHTTP(w, r)
		}
	}
	// change returns a registry that sends the result of f instead of the content of the blob b.
	change := func(b artifact.Blob, f func(p []byte) []byte) around {
		return func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, b.Digest.Encoded()) {
				inner.ServeHTTP(w, r)
				return
			}
			rec := &recorder{header: make(http.Header)}
			inner.ServeHTTP(rec, r)
			p := f(rec.body.Bytes())
			w.Header().Set("Content-Length", strconv.Itoa(len(p)))
			w.WriteHeader(rec.status)
			w.Write(p)
		}
	}
	flip := func(p []byte) []byte { p[len(p)/2] ^= 1; return p }
	send := func(part string, p []byte) around {
		return of(part, func(w http.ResponseWriter, _ *http.Request) { w.Write(p) })
	}
	endless := func(part string) around {
		return of(part, func(w http.ResponseWriter, _ *http.Request) { forever(w, make([]byte, 1<<20), 0) })
	}
	slow := func(part string) around {
		return of(part, func(w http.ResponseWriter, _ *http.Request) { forever(w, []byte{' '}, 20*time.Millisecond) })
	}
	lead := func(part, url string) around {
		return of(part, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, url, http.StatusTemporaryRedirect)
		})
	}
	refuse := func(header, value, text string) around {
		return of("/v2/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(header, value)
			w.WriteHeader(http.StatusUnauthorized)
			w.Write([]byte(text))
		})
	}
	const manifests, challenge = "/manifests/", "WWW-Authenticate"
	blob, config := base.Digest.Encoded(), digest.FromBytes(sent.Config).Encoded()
	for name, c := range map[string]struct {
		around around
		want   string
	}{
		"a flipped bit in a frame":     {change(base, flip), "differs from its digest"},
		"a flipped bit in a state":     {change(state, flip), "digest"},
		"a truncated blob":             {change(base, func(p []byte) []byte { return p[:len(p)/2] }), "unexpected EOF"},
		"a longer blob":                {change(base, func(p []byte) []byte { return append(p, 0) }), "in the place of"},
		"another blob":                 {send(blob, make([]byte, base.Size)), "digest"},
		"an endless blob":              {endless(blob), "digest"},
		"a slow blob":                  {slow(blob), "too little data"},
		"a blob that never begins":     {of(blob, func(http.ResponseWriter, *http.Request) { <-stop }), "too little data"},
		"an endless manifest":          {endless(manifests), "more than"},
		"a slow manifest":              {slow(manifests), "too little data"},
		"a manifest that is no JSON":   {send(manifests, []byte("<html>")), "not a valid snapshot"},
		"a container image":            {send(manifests, []byte(`{"schemaVersion":2}`)), "such as a container image"},
		"another configuration":        {send(config, other.Config), "not a valid snapshot"},
		"an endless configuration":     {endless(config), "more than"},
		"a missing blob":               {of(blob, http.NotFound), "404"},
		"a redirect loop":              {lead(blob, "/v2/team/py/blobs/"+base.Digest.String()), "redirects"},
		"a redirect without TLS":       {lead(blob, "http://192.0.2.1/x"), "has no TLS"},
		"a redirect to metadata":       {lead(manifests, "http://169.254.169.254/x"), "has no TLS"},
		"a redirect to a file":         {lead(manifests, "file:///etc/passwd"), "unsupported protocol"},
		"a huge header":                {refuse("X", strings.Repeat("x", 2*maxHeader), ""), "registry"},
		"an error with a long text":    {refuse("X", "", `{"errors":[{"code":"`+strings.Repeat("y", 60_000)+`"}]}`), "401"},
		"a token server that hangs":    {refuse(challenge, `Bearer realm="`+s.URL+`/token"`, ""), "too little data"},
		"a token server without TLS":   {refuse(challenge, `Bearer realm="http://192.0.2.1/token"`, ""), "has no TLS"},
		"a login without a challenge":  {refuse("X", "", ""), "401"},
		"a server that is no registry": {send("/v2/", []byte("hello")), "not a valid snapshot"},
		"a compressed answer": {of(manifests, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			z.Write(sent.Manifest)
			z.Close()
		}), "not a valid snapshot"},
	} {
		if strings.Contains(name, "hangs") {
			inner := c.around
			c.around = func(w http.ResponseWriter, r *http.Request, h http.Handler) {
				if r.URL.Path == "/token" {
					<-stop
				}
				inner(w, r, h)
			}
		}
		s.set(c.around)
		begin := time.Now()
		_, err := b.Pull(t.Context(), "ann", "", remoteOf(t, s.host+"/team/py:1"), ignore)
		var bad *artifact.Error
		var failed *RegistryError
		if !errors.As(err, &bad) && !errors.As(err, &failed) || !strings.Contains(fmt.Sprint(err), c.want) ||
			len(fmt.Sprint(err)) > 1000 {
			t.Errorf("%s: %.2000v, want %q", name, err, c.want)
		}
		if d := time.Since(begin); d > 2*time.Minute {
			t.Errorf("%s: it took %v", name, d)
		}
		b.leavesNothing(t, name, 0)
		if err := b.cache.trim(0); err != nil {
			t.Fatal(err)
		}
	}
	s.set(change(base, func(p []byte) []byte { return p }))
	b.tries, b.stall = 4, time.Minute
	b.pull(t, "", s.host+"/team/py:1")
	b.check(t, "parent", map[int64]byte{2: 'p'})
}

// If a registry sends enough data in each minute, but too little in total, the pull ends.
func TestSlowRegistry(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).hasty()
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
	b.stall, b.pace = time.Hour, 200*time.Millisecond
	var failed *RegistryError
	_, err := b.Pull(t.Context(), "ann", "", remoteOf(t, s.host+"/team/py:1"), ignore)
	if !errors.As(err, &failed) || !errors.Is(err, errSlow) {
		t.Error(err)
	}
	b.leavesNothing(t, "a slow registry", 0)
}

// The room on the disk is checked again while a blob arrives. The test uses registries with and
// without ranges.
func TestDiskFillsDuringPull(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).hasty()
	a.noise(t, "parent")
	base := baseOf(a.push(t, "parent", s.host+"/team/py:1").Artifact)
	b.roomEvery = 4096
	for name, around := range map[string]func(http.ResponseWriter, *http.Request, http.Handler){
		"ranges": nil,
		"no ranges": func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			r.Header.Del("Range")
			inner.ServeHTTP(w, r)
		},
	} {
		s.set(around)
		o, err := b.find(t.Context(), remoteOf(t, s.host+"/team/py:1"), func(_ *Verdict, err error) error { return err })
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(filepath.Join(t.TempDir(), "blob"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		asked, arrived := 0, int64(0)
		x := &fetching{conn: o.conn, b: base, out: f, sent: func(n int64) { arrived += n }, room: func() error {
			if asked++; asked == 2 {
				return roomError{unix.ENOSPC}
			}
			return nil
		}}
		var failed *RegistryError
		err = o.conn.failed(x.run(t.Context()))
		if !errors.Is(err, unix.ENOSPC) || errors.As(err, &failed) || asked != 2 || arrived >= base.Size {
			t.Errorf("%s: %v after %d bytes of %d and %d questions", name, err, arrived, base.Size, asked)
		}
	}
}

type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

// If the manifest does not have the requested digest, or if this host cannot run or store the
// snapshot, a pull fails before any layer is fetched.
func TestRefusedBeforeLayers(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	sent := a.push(t, "parent", s.host+"/team/py:1")
	a.make(t, "other", "", 3, 'o')
	other := a.push(t, "other", s.host+"/team/py:2")
	refused := func(name, reference, want string) {
		t.Helper()
		_, err := b.Pull(t.Context(), "ann", "", remoteOf(t, reference), ignore)
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		log, _, _ := s.set(nil)
		for _, blob := range append(slices.Clone(sent.Blobs), other.Blobs...) {
			if slices.Contains(log, "GET /v2/team/py/blobs/"+blob.Digest.String()) {
				t.Errorf("%s: %s was fetched", name, blob.Part.Name)
			}
		}
		b.isClean(t, name, len(b.store.List()))
	}
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		r.URL.Path = strings.Replace(r.URL.Path, sent.Digest().String(), other.Digest().String(), 1)
		inner.ServeHTTP(w, r)
	})
	refused("another digest", s.host+"/team/py@"+sent.Digest().String(), "the manifest has the digest")
	b.cfg.Memory = memory - 1
	refused("too much memory", s.host+"/team/py:1", "this host cannot run it")
	b.cfg.Memory = 1 << 30
	b.room = errors.New("full")
	refused("a full disk", s.host+"/team/py:1", "full")
	b.room = nil
	b.cfg.Reserve = 1 << 62
	refused("the reserve", s.host+"/team/py:1", "without the daemon's reserve")
	b.cfg.Reserve = 0
	b.make(t, "parent", "", 9, 'x')
	s.set(nil)
	refused("a taken tag", s.host+"/team/py:1", "exists")
}

// The daemon connects to other hosts only with TLS. A registry on another host cannot redirect the
// daemon to a server on this host.
func TestWireRules(t *testing.T) {
	for _, c := range []struct {
		home, url string
		ok        bool
	}{
		{"ghcr.io", "https://ghcr.io/v2/", true}, {"ghcr.io", "https://blobs.example/x", true},
		{"ghcr.io", "http://ghcr.io/v2/", false}, {"10.0.0.1", "http://10.0.0.1/v2/", false},
		{"ghcr.io", "https://127.0.0.1/x", false}, {"ghcr.io", "https://localhost:5000/x", false},
		{"ghcr.io", "https://[::1]/x", false}, {"ghcr.io", "http://169.254.169.254/x", false},
		{"127.0.0.1", "http://127.0.0.1:5000/v2/", true}, {"localhost", "http://localhost:5000/v2/", true},
		{"127.0.0.1", "http://192.0.2.1/", false},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := (wire{home: c.home}).check(r); (err == nil) != c.ok {
			t.Errorf("%s leads to %s: %v", c.home, c.url, err)
		}
	}
}
