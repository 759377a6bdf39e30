package image

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	login "github.com/forkd/forkd/internal/registry"
)

// privateRegistry has an image that only the user "me" with the password "secret" may fetch. It
// redirects requests for blobs to another server. That server records the credentials in these
// requests.
type privateRegistry struct {
	reference string
	mu        sync.Mutex
	elsewhere []string // values of Authorization at the other server
	requests  int      // number of requests to the other server
}

// servePrivate serves a registry that requires the password in every request. If tokens is true,
// the registry issues a token for the password, and requires this token instead.
func servePrivate(t *testing.T, tokens bool) *privateRegistry {
	t.Helper()
	p := &privateRegistry{}
	open := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.requests++
		if a := r.Header.Get("Authorization"); a != "" {
			p.elsewhere = append(p.elsewhere, a)
		}
		open.ServeHTTP(w, r)
	}))
	t.Cleanup(other.Close)
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		isUser := user == "me" && password == "secret"
		switch {
		case r.URL.Path == "/token" && r.Method == http.MethodPost: // exchange of an identity token for an access token
			if r.FormValue("refresh_token") != "identity" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			fmt.Fprint(w, `{"access_token": "pass"}`)
			return
		case r.URL.Path == "/token" && isUser:
			fmt.Fprint(w, `{"token": "pass"}`)
			return
		case r.URL.Path == "/token":
			w.WriteHeader(http.StatusUnauthorized)
			return
		case tokens && r.Header.Get("Authorization") != "Bearer pass":
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="test"`, server.URL))
			w.WriteHeader(http.StatusUnauthorized)
			return
		case !tokens && !isUser:
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		case r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/"):
			http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
			return
		}
		open.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	p.reference = strings.TrimPrefix(server.URL, "http://") + "/test/image:v1"
	ref, err := name.ParseReference(p.reference)
	if err != nil {
		t.Fatal(err)
	}
	auth := &authn.Basic{Username: "me", Password: "secret"}
	if err := remote.Write(ref, testImage(t), remote.WithAuth(auth)); err != nil {
		t.Fatal(err)
	}
	return p
}

// A private registry sends an image only to a client with credentials: a password, or a token. The
// servers to which the registry redirects receive no credentials.
func TestPrivateRegistries(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	for _, tokens := range []bool{false, true} {
		p := servePrivate(t, tokens)
		for _, c := range []struct {
			login *login.Login
			want  bool
		}{
			{nil, false},
			{&login.Login{User: "me", Password: "wrong"}, false},
			{&login.Login{User: "me", Password: "secret"}, true},
			{&login.Login{IdentityToken: "identity"}, tokens}, {&login.Login{RegistryToken: "pass"}, tokens},
		} {
			got, err := resolveContainer(t.Context(), base{baseRegistry, p.reference}, &Recipe{dir: "/", Login: c.login})
			if (err == nil) != c.want {
				t.Errorf("tokens %v, login %v: %v", tokens, c.login, err)
				continue
			}
			if err != nil {
				for _, secret := range []string{"secret", "wrong", "identity"} {
					if strings.Contains(err.Error(), secret) {
						t.Errorf("the error has credentials: %v", err)
					}
				}
				continue
			}
			if err := got.stream(t.Context(), io.Discard); err != nil {
				t.Errorf("tokens %v: %v", tokens, err)
			}
		}
		p.mu.Lock()
		if p.requests == 0 || len(p.elsewhere) > 0 {
			t.Errorf("tokens %v: another server got %d requests with the credentials %q", tokens, p.requests, p.elsewhere)
		}
		p.mu.Unlock()
	}
}

// record directs all requests of the test to one server, whatever hosts they are for. The result
// has the hosts of requests with a credential.
func record(t *testing.T, server *httptest.Server, answer func(http.ResponseWriter, *http.Request)) *[]string {
	t.Helper()
	var mu sync.Mutex
	var hosts []string
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("refresh_token") != "" || r.Header.Get("Authorization") != "" {
			mu.Lock()
			hosts = append(hosts, r.Host)
			mu.Unlock()
		}
		answer(w, r)
	})
	old := remote.DefaultTransport
	t.Cleanup(func() { remote.DefaultTransport = old })
	to := server.Client().Transport.(*http.Transport).Clone()
	if to.TLSClientConfig != nil {
		to.TLSClientConfig.InsecureSkipVerify = true
	}
	to.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
	}
	remote.DefaultTransport = to
	return &hosts
}

// To another host, builds send no credential over a connection without TLS: no password, no
// identity token, and no stored credential of Docker.
func TestCredentialsOfBuildsNeedTLS(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	t.Setenv("HOME", dir)
	stored := `{"auths": {"10.1.2.3:5000": {"auth": "bWU6c2VjcmV0"}}}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(stored), 0o600); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(nil)
	defer server.Close()
	for _, l := range []*login.Login{nil, {User: "me", Password: "secret"}, {IdentityToken: "identity"}} {
		for _, challenge := range []string{`Basic realm="test"`, `Bearer realm="http://10.1.2.3:5000/token",service="test"`} {
			seen := record(t, server, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("WWW-Authenticate", challenge)
				w.WriteHeader(http.StatusUnauthorized)
			})
			_, err := Inspect(t.Context(), "10.1.2.3:5000/test/image:v1", l)
			if err == nil || len(*seen) > 0 {
				t.Errorf("login %v, %s: %v; credentials for %q", l, challenge, err, *seen)
			}
		}
	}
}

// The exchange of an identity token does not follow a redirect to another server.
func TestIdentityTokensOfBuildsAreNotRedirected(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	seen := record(t, server, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			http.Redirect(w, r, "https://other.example/token", http.StatusTemporaryRedirect)
			return
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="https://registry.example/token",service="test"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	_, err := Inspect(t.Context(), "registry.example/test/image:v1", &login.Login{IdentityToken: "identity"})
	if err == nil || len(*seen) == 0 || slices.Contains(*seen, "other.example") {
		t.Errorf("%v; credentials for %q", err, *seen)
	}
}
