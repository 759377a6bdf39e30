package ocihttp_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
)

// between is a server between two daemons. The daemon that pulls takes it for the source.
type between struct {
	url string

	mu     sync.RWMutex // held for writing while the source is replaced
	target *url.URL     // the source
	change func(*http.Response) error
}

func newBetween(t *testing.T) *between {
	t.Helper()
	b := &between{}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			b.mu.RLock()
			defer b.mu.RUnlock()
			r.SetURL(b.target)
		},
		ModifyResponse: func(resp *http.Response) error {
			b.mu.RLock()
			change := b.change
			b.mu.RUnlock()
			if change == nil {
				return nil
			}
			return change(resp)
		},
		ErrorLog: log.New(io.Discard, "", 0),
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	b.url = server.URL
	return b
}

// lead sets the source, and the function that changes its answers.
func (b *between) lead(t *testing.T, to string, change func(*http.Response) error) {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.target, b.change = target, change
}

// isLarge reports whether an answer has the large blob, and not only the index at the blob's end.
func isLarge(resp *http.Response) bool {
	return strings.Contains(resp.Request.URL.Path, "/blobs/") && resp.ContentLength > 3<<20
}

// replace returns a function that changes the bodies of answers for which is(answer) is true.
func replace(is func(*http.Response) bool, with func([]byte) []byte) func(*http.Response) error {
	return func(resp *http.Response) error {
		if !is(resp) {
			return nil
		}
		p, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		p = with(p)
		resp.Body = io.NopCloser(bytes.NewReader(p))
		resp.ContentLength = int64(len(p))
		resp.Header.Set("Content-Length", strconv.Itoa(len(p)))
		return nil
	}
}

// A hostile source cannot make a daemon accept bytes that do not have the artifact's digest.
func TestHostileSource(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	a, b, middle := source(t, apirig.Options{}), start(t, apirig.Options{}), newBetween(t)
	found, err := b.FindSnapshot(t.Context(), client.FindRequest{Reference: hostOf(a.URL) + "/b1:latest",
		RegistryAuth: pullOf(a.URL, "b1:latest", apirig.Token).RegistryAuth})
	if err != nil {
		t.Fatal(err)
	}
	of := func(part string) func(*http.Response) bool {
		return func(resp *http.Response) bool { return strings.Contains(resp.Request.URL.Path, part) }
	}
	flip := func(p []byte) []byte { p[len(p)/2] ^= 1; return p }
	half := func(p []byte) []byte { return p[:len(p)/2] }
	double := func(p []byte) []byte { return append(p, p...) }
	empty := func([]byte) []byte { return []byte("{}") }
	latest := "b1:latest"
	pull := func(name string) error {
		_, err := b.PullSnapshot(t.Context(), pullOf(middle.url, name, apirig.Token), nil)
		return err
	}
	for what, c := range map[string]struct {
		name   string
		change func(*http.Response) error
		text   string
	}{
		"changed bytes":    {latest, replace(isLarge, flip), "differs from its digest"},
		"too few bytes":    {latest, replace(isLarge, half), "bytes in the place of"},
		"too many bytes":   {latest, replace(isLarge, double), "bytes in the place of"},
		"another snapshot": {"b1@" + found.Digest, replace(of("/manifests/"), flip), "the manifest has the digest"},
		"another manifest": {latest, replace(of("/manifests/"), empty), "its type is not"},
		"other files":      {latest, replace(of("/blobs/"), flip), ""},
	} {
		middle.lead(t, a.URL, c.change)
		if isCode(t, pull(c.name), "artifact_refused", c.text); t.Failed() {
			t.Fatal(what)
		}
		none(t, b)
	}
	middle.lead(t, a.URL, nil)
	if err := pull("b1@" + found.Digest); err != nil {
		t.Error(err)
	}
}

// If the snapshot is deleted during a pull, the pull ends, and nothing is left.
func TestDeletedDuringAPull(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	a, b, middle := source(t, apirig.Options{}), start(t, apirig.Options{}), newBetween(t)
	deleted := false
	middle.lead(t, a.URL, func(resp *http.Response) error {
		if deleted || !strings.Contains(resp.Request.URL.Path, "/referrers/") &&
			!strings.Contains(resp.Request.URL.Path, "/manifests/") {
			return nil
		}
		deleted = true
		return a.DeleteSnapshot(t.Context(), "b1", client.DeleteOptions{})
	})
	_, err := b.PullSnapshot(t.Context(), pullOf(middle.url, "b1:latest", apirig.Token), nil)
	isCode(t, err, "not_found_in_registry", "NAME_UNKNOWN")
	none(t, b)
}

// sourceDirEnv is the environment variable with the directory of the daemon that TestSourceProcess
// runs.
const sourceDirEnv = "FORKD_TEST_SOURCE_DIR"

// TestSourceProcess is the main function of a daemon's process. It is not a test by itself.
func TestSourceProcess(t *testing.T) {
	dir := os.Getenv(sourceDirEnv)
	if dir == "" {
		return
	}
	r := start(t, apirig.Options{Dir: dir, Unchecked: true})
	if list, err := r.Snapshots(t.Context()); err != nil {
		t.Fatal(err)
	} else if len(list) == 0 {
		bake(t, r, dir)
	}
	fmt.Println("URL", r.URL)
	<-t.Context().Done() // the process is killed before that
}

// startProcess starts a daemon in a process of its own.
func startProcess(t *testing.T, dir string) (url string, kill func(), err error) {
	t.Helper()
	tmp, err := os.MkdirTemp("", "s") // a killed process does not remove its files; sockets need a short path
	if err != nil {
		return "", nil, err
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	cmd := exec.Command(os.Args[0], "-test.run=^TestSourceProcess$")
	cmd.Env = append(os.Environ(), sourceDirEnv+"="+dir, "TMPDIR="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", nil, err
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // fails only if the process has exited
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if url, ok := strings.CutPrefix(lines.Text(), "URL "); ok {
			go io.Copy(io.Discard, out)
			return url, kill, nil
		}
	}
	return "", nil, errors.New("the daemon has not started")
}

// dying is the body of an answer whose source dies in the middle.
type dying struct {
	io.ReadCloser
	left int // bytes before the source dies
	die  func()
}

func (d *dying) Read(p []byte) (int, error) {
	if d.left == 0 {
		d.die()
		return 0, errors.New("the source was killed")
	}
	n, err := d.ReadCloser.Read(p[:min(len(p), d.left)])
	d.left -= n
	return n, err
}

// If the source is killed during a pull and starts again, the pull continues after the last
// complete frame.
func TestSourceIsKilled(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	dir := t.TempDir()
	first, kill, err := startProcess(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	b, middle := start(t, apirig.Options{}), newBetween(t)
	const sent = 2<<20 + 1000 // bytes of the large blob before the source is killed
	var mu sync.Mutex
	var ranges []string
	var before int64
	middle.lead(t, first, func(resp *http.Response) error {
		if !strings.Contains(resp.Request.URL.Path, "/blobs/") || resp.ContentLength < 1<<20 {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		ranges = append(ranges, resp.Request.Header.Get("Range"))
		if len(ranges) > 1 {
			return nil
		}
		before = resp.ContentLength
		resp.Body = &dying{resp.Body, sent, func() {
			middle.mu.Lock()
			defer middle.mu.Unlock()
			kill()
			again, _, err := startProcess(t, dir)
			if err != nil {
				t.Error(err)
			}
			middle.target.Host = hostOf(again)
		}}
		return nil
	})
	got, err := b.PullSnapshot(t.Context(), pullOf(middle.url, "a.b:latest", apirig.Token), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.VerifySnapshot(t.Context(), "a.b"); err != nil {
		t.Error(err)
	}
	start := 0
	if len(ranges) == 2 {
		_, _ = fmt.Sscanf(ranges[1], "bytes=%d-", &start) // start stays 0 if the range is not valid
	}
	if len(ranges) != 2 || start == 0 || start > sent || start < sent-1<<20 {
		t.Errorf("the ranges %q of %d bytes, the source was killed after %d", ranges, before, sent)
	}
	t.Logf("%d bytes were fetched of %d", got.Moved, got.Bytes)
}
