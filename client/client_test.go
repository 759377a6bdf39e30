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
	if _, err := c.Sandboxes(context.Background()); !IsStatus(err, 502) || !strings.Contains(err.Error(), "not an answer of a forkd daemon") {
		t.Errorf("error of something else: %v", err)
	}
}
