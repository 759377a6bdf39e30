package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAddresses(t *testing.T) {
	for _, good := range []string{"unix:///run/forkd.sock", "http://127.0.0.1:1", "https://h/prefix/"} {
		if _, err := New(good, ""); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "unix://relative", "ftp://h", "127.0.0.1:1", "http://"} {
		if _, err := New(bad, ""); err == nil {
			t.Errorf("%s: accepted", bad)
		}
	}
}

func TestErrors(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t" {
			t.Errorf("authorization %q", r.Header.Get("Authorization"))
		}
		if r.URL.Path == "/v1/sandboxes" {
			http.Error(w, "<html>proxy</html>", http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		w.Write([]byte(`{"error":"snapshot \"x\": not found"}`))
	}))
	defer srv.Close()
	c, err := New(srv.URL, "t")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Snapshot(context.Background(), "x/y"); !IsNotFound(err) || err.Error() != `snapshot "x": not found` {
		t.Errorf("error of the daemon: %v", err)
	}
	if _, err := c.Sandboxes(context.Background()); !IsStatus(err, 502) ||
		!strings.Contains(err.Error(), "not an answer of a forkd daemon") {
		t.Errorf("error of something else: %v", err)
	}
}

// Redirects are not followed: neither the token nor the request reaches another server.
func TestRedirectsAreNotFollowed(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the other server got %s %s with %q", r.Method, r.URL, r.Header.Get("Authorization"))
	}))
	defer other.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+"/internal", status)
		}))
		c, err := New(daemon.URL, "a-token")
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		for name, call := range map[string]func() error{
			"get":       func() error { _, err := c.Sandboxes(ctx); return err },
			"post":      func() error { _, err := c.Exec(ctx, "sb-1", ExecRequest{Args: []string{"ls"}}); return err },
			"websocket": func() error { _, err := c.StartExec(ctx, "sb-1", ExecRequest{Args: []string{"ls"}}); return err },
			"upgrade":   func() error { _, err := c.DialPort(ctx, "sb-1", 80); return err },
			"over": func() error {
				over := Over(http.DefaultTransport)
				over.base = daemon.URL
				return over.Healthy(ctx)
			},
		} {
			if err := call(); !IsStatus(err, status) || !strings.Contains(err.Error(), other.URL+"/internal") ||
				!strings.Contains(err.Error(), "URL is likely wrong") {
				t.Errorf("%d, %s: %v", status, name, err)
			}
		}
		c.Close()
		daemon.Close()
	}
}

// An empty id is refused before a request is sent, because a server would take the next segment of
// the path as the id.
func TestEmptyNames(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a request for %s", r.URL)
	}))
	defer srv.Close()
	c, err := New(srv.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for name, call := range map[string]func(id string) error{
		"kill":      func(id string) error { return c.Kill(ctx, id) },
		"exec":      func(id string) error { _, err := c.Exec(ctx, id, ExecRequest{Args: []string{"ls"}}); return err },
		"socket":    func(id string) error { _, err := c.StartExec(ctx, id, ExecRequest{Args: []string{"ls"}}); return err },
		"port":      func(id string) error { _, err := c.DialPort(ctx, id, 80); return err },
		"file":      func(id string) error { _, err := c.ReadFile(ctx, id, "/x"); return err },
		"snapshot":  func(tag string) error { _, err := c.Snapshot(ctx, tag); return err },
		"rmi":       func(tag string) error { return c.DeleteSnapshot(ctx, tag, DeleteOptions{}) },
		"workspace": func(name string) error { return c.DeleteWorkspace(ctx, name) },
	} {
		for _, id := range []string{"", ".", ".."} {
			if err := call(id); err == nil || !strings.Contains(err.Error(), "empty") {
				t.Errorf("%s of %q: %v", name, id, err)
			}
		}
	}
}

// A value of the type answers is a transport. It answers every request with the value of the
// string.
type answers string

// RoundTrip implements http.RoundTripper.
func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Header: http.Header{},
		Body: io.NopCloser(strings.NewReader(string(a))), Request: r}, nil
}

// If the daemon does not know a path, the error says that the daemon may be older than the client.
func TestAnOlderDaemonIsNamed(t *testing.T) {
	daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		w.Write([]byte(`{"error":"GET /v1/snapshots: no such route","code":"no_such_route"}`))
	}))
	defer daemon.Close()
	c, err := New(daemon.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Snapshots(t.Context())
	if !errors.Is(err, ErrNoSuchRoute) || !strings.Contains(err.Error(), "may be older") {
		t.Errorf("%v", err)
	}
}

// A fork that returns a wrong number of children is an error, because callers address children by
// index.
func TestForkedChildrenAreCounted(t *testing.T) {
	const none, one, two = `{"sandboxes":[]}`, `{"sandboxes":[{"id":"sb-1"}]}`,
		`{"sandboxes":[{"id":"sb-1"},{"id":"sb-2"}]}`
	for _, test := range []struct {
		answer  answers
		n       int
		partial bool
		ok      bool
	}{
		{none, 1, false, false}, {one, 1, false, true}, {two, 1, false, false}, {one, 2, false, false},
		{none, 2, true, true}, {one, 2, true, true}, {two, 1, true, false},
	} {
		f, err := Over(test.answer).Fork(t.Context(), ForkRequest{SnapshotTag: "a", N: test.n, AllowPartial: test.partial})
		if (err == nil) != test.ok || err != nil && len(f.Sandboxes) > 0 {
			t.Errorf("%s for %d, partial %v: %+v, %v", test.answer, test.n, test.partial, f, err)
		}
	}
	attempt := func(context.Context, Sandbox) (int, error) { return 1, nil }
	_, err := BestOf(t.Context(), Over(answers(none)), "sb-1", []Attempt[int]{attempt},
		func(context.Context, Sandbox, int) (float64, error) { return 1, nil }, ForkRequest{})
	if err == nil || !strings.Contains(err.Error(), "0 sandboxes, want 1") {
		t.Errorf("the best of none: %v", err)
	}
}

func TestEachFile(t *testing.T) {
	each := func(answer string, most int) (names []string, err error) {
		err = Over(answers(answer)).EachFile(t.Context(), "sb-1", "/", 1, func(f File) error {
			if names = append(names, f.Name); len(names) == most {
				return io.ErrShortBuffer
			}
			return nil
		})
		return names, err
	}
	const list = `[{"name":"a"},{"name":"b"}]`
	if names, err := each(list, 0); err != nil || strings.Join(names, "") != "ab" {
		t.Errorf("%v, %v", names, err)
	}
	if names, err := each(list, 1); !errors.Is(err, io.ErrShortBuffer) || len(names) != 1 {
		t.Errorf("stopped: %v, %v", names, err)
	}
	if _, err := each("[]", 0); err != nil {
		t.Errorf("an empty directory: %v", err)
	}
	for _, bad := range []string{"", "{}", "null", `[{"name":"a"}`, `[{"name":1}]`} {
		if _, err := each(bad, 0); err == nil {
			t.Errorf("%s: accepted", bad)
		}
	}
	if err := Over(answers(list)).EachFile(t.Context(), "sb-1", "/", 0, nil); err == nil {
		t.Error("depth 0: accepted")
	}
}
