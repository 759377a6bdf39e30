package v1_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	v1 "github.com/forkd/forkd/internal/daemon/v1"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/tenancy"
)

// A page in a browser must not be able to use the API, even if a proxy adds the token.
func TestAForeignPageIsRefused(t *testing.T) {
	_, url, _, _ := serve(t)
	for _, c := range []struct {
		method, origin string
		want           int
	}{
		{"POST", "", http.StatusBadRequest}, {"POST", "https://example.org", http.StatusForbidden},
		{"GET", "", http.StatusOK}, {"GET", "https://example.org", http.StatusForbidden},
	} {
		req, err := http.NewRequest(c.method, url+"/v1/sandboxes", strings.NewReader(`{"n": 0}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		if c.origin != "" {
			req.Header.Set("Origin", c.origin)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s, origin %q: status %d, want %d", c.method, c.origin, resp.StatusCode, c.want)
		}
	}
}

// If a page's domain name was made to resolve to this host, the browser sends that name as Host,
// and the request is refused.
func TestAForeignNameIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := auth.OpenTokens(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	with := func(guard *auth.Guard) v1.Config {
		f := face.New(face.Config{Host: tenancy.New(&sandbox.Manager{}, nil, nil), Guard: guard,
			Hosts: []string{"forkd.internal"}, Log: slog.New(slog.DiscardHandler)})
		return v1.Config{Face: f, Metrics: http.NotFoundHandler()}
	}
	open, guarded := with(nil), with(&auth.Guard{Tokens: tokens})
	for _, c := range []struct {
		name    string
		cfg     v1.Config
		network string
		host    string
		want    int
	}{
		{"rebound", open, "tcp", "example.org", http.StatusForbidden},
		{"rebound, with the port", open, "tcp", "example.org:8889", http.StatusForbidden},
		{"loopback", open, "tcp", "127.0.0.1:8889", http.StatusOK},
		{"configured", open, "tcp", "forkd.internal", http.StatusOK},
		{"with a token", guarded, "tcp", "example.org", http.StatusOK},
		{"unix socket", open, "unix", "forkd", http.StatusOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := httptest.NewUnstartedServer(v1.New(c.cfg))
			defer srv.Close()
			if c.network == "unix" {
				srv.Listener.Close()
				if srv.Listener, err = net.Listen("unix", filepath.Join(t.TempDir(), "s")); err != nil {
					t.Fatal(err)
				}
			}
			srv.Start()
			dial := func(context.Context, string, string) (net.Conn, error) {
				return net.Dial(srv.Listener.Addr().Network(), srv.Listener.Addr().String())
			}
			req, err := http.NewRequest("GET", "http://"+c.host+"/version", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+token)
			resp, err := (&http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != c.want {
				t.Errorf("status %d, want %d", resp.StatusCode, c.want)
			}
		})
	}
}
