package image

import (
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// privateRegistry has an image that only the user "me" with the password "secret" may fetch. For
// blobs it redirects to another server, which records the credentials that it receives.
type privateRegistry struct {
	reference string
	mu        sync.Mutex
	elsewhere []string // values of Authorization at the other server
	requests  int      // number of requests to the other server
}

// servePrivate serves a registry that requires the password in every request or, if tokens is set,
// a token that it issues for the password.
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

// Private registries send an image only to a client with credentials, whether they require the
// password or a token. The servers to which they redirect receive no credentials.
func TestPrivateRegistries(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	for _, tokens := range []bool{false, true} {
		p := servePrivate(t, tokens)
		for _, c := range []struct {
			login *Login
			want  bool
		}{
			{nil, false}, {&Login{User: "me", Password: "wrong"}, false}, {&Login{User: "me", Password: "secret"}, true},
			{&Login{IdentityToken: "identity"}, tokens}, {&Login{RegistryToken: "pass"}, tokens},
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

// StoredLogin finds the credentials of `docker login` and of credential helpers, each only for its
// own registry.
func TestStoredLogin(t *testing.T) {
	dir, bin := t.TempDir(), t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	t.Setenv("HOME", t.TempDir())
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	helper := `#!/bin/sh
read host
case "$1 $host" in
"get helped.example") echo '{"ServerURL": "helped.example", "Username": "helped", "Secret": "by it"}' ;;
"get token.example") echo '{"ServerURL": "token.example", "Username": "<token>", "Secret": "identity"}' ;;
*) echo "credentials not found in native keychain"; exit 1 ;;
esac
`
	config := fmt.Sprintf(`{"auths": {"file.example:5000": {"auth": %q}, "https://index.docker.io/v1/": {"auth": %[1]q}},
"credHelpers": {"helped.example": "test", "token.example": "test", "none.example": "test"}}`,
		base64.StdEncoding.EncodeToString([]byte("me:sec:ret")))
	for name, text := range map[string]string{filepath.Join(bin, "docker-credential-test"): helper,
		filepath.Join(dir, "config.json"): config} {
		if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for host, want := range map[string]Login{
		"file.example:5000": {User: "me", Password: "sec:ret"}, "docker.io": {User: "me", Password: "sec:ret"},
		"helped.example": {User: "helped", Password: "by it"}, "token.example": {IdentityToken: "identity"},
		"none.example": {}, "other.example": {}, "file.example": {},
	} {
		got, ok, err := StoredLogin(t.Context(), host)
		if err != nil || got != want || ok != (want != Login{}) {
			t.Errorf("%s: %q %q %q, %v, %v", host, got.User, got.Password, got.IdentityToken, ok, err)
		}
	}
}

// A request with credentials requires TLS, unless its destination is this host.
func TestCredentialsNeedTLS(t *testing.T) {
	for url, want := range map[string]bool{"https://10.0.0.1/v2/": true, "http://127.0.0.1:5000/v2/": true,
		"http://[::1]/": true, "http://localhost:5000/": true, "http://10.0.0.1/v2/": false, "http://host.local/": false} {
		r := httptest.NewRequest(http.MethodGet, url, nil)
		if err := checkEncrypted(r); err != nil {
			t.Errorf("%s without credentials: %v", url, err)
		}
		r.Header.Set("Authorization", "Bearer x")
		if err := checkEncrypted(r); (err == nil) != want {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestRegistryNames(t *testing.T) {
	for host, want := range map[string]string{"docker.io": "index.docker.io", "ghcr.io": "ghcr.io",
		"127.0.0.1:5000": "127.0.0.1:5000", "": "", "a/b": "", "https://x": ""} {
		if got, err := Registry(host); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", host, got, err)
		}
	}
	for reference, want := range map[string]string{"python:3.12": "index.docker.io", "ghcr.io/a/b": "ghcr.io",
		"Not One": ""} {
		if got := RegistryOf(reference); got != want {
			t.Errorf("%q: %q", reference, got)
		}
	}
}
