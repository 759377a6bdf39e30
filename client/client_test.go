package client

import (
	"context"
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

// An empty id is refused before a request is sent, because a server would take the next part of the
// path as the id.
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
