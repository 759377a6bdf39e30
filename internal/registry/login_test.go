package registry

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

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

// A request with credentials requires TLS, unless its destination is this host. The body of a POST
// can be an exchange of an identity token.
func TestCredentialsNeedTLS(t *testing.T) {
	for url, want := range map[string]bool{"https://10.0.0.1/v2/": true, "http://127.0.0.1:5000/v2/": true,
		"http://[::1]/": true, "http://localhost:5000/": true, "http://10.0.0.1/v2/": false, "http://host.local/": false} {
		r := httptest.NewRequest(http.MethodGet, url, nil)
		if err := Check(r, r.URL.Host); err != nil {
			t.Errorf("%s without credentials: %v", url, err)
		}
		r.Header.Set("Authorization", "Bearer x")
		if err := Check(r, r.URL.Host); (err == nil) != want {
			t.Errorf("%s: %v", url, err)
		}
		if err := Check(httptest.NewRequest(http.MethodPost, url, nil), r.URL.Host); (err == nil) != want {
			t.Errorf("POST %s: %v", url, err)
		}
	}
}

// A registry on another host cannot lead a client to this host, and a POST is not repeated at
// another server.
func TestRegistriesLeadTo(t *testing.T) {
	for _, c := range []struct {
		home, method, from, url string
		want                    bool
	}{
		{"ghcr.io", "GET", "https://ghcr.io/v2/", "https://blobs.example/x", true},
		{"ghcr.io", "POST", "https://ghcr.io/token", "https://ghcr.io/other", true},
		{"ghcr.io", "POST", "https://ghcr.io/token", "https://blobs.example/x", false},
		{"ghcr.io", "GET", "https://ghcr.io/v2/", "https://127.0.0.1/x", false},
		{"10.0.0.1:5000", "GET", "http://10.0.0.1:5000/v2/", "http://localhost:80/x", false},
		{"[::1]:5000", "GET", "http://[::1]:5000/v2/", "http://127.0.0.1:5001/x", true},
		{"localhost", "GET", "http://localhost/v2/", "http://[::1]:5001/x", true},
	} {
		r := httptest.NewRequest(c.method, c.url, nil)
		r.Response = &http.Response{Request: httptest.NewRequest(c.method, c.from, nil)}
		if err := Check(r, c.home); (err == nil) != c.want {
			t.Errorf("%s leads %s to %s: %v", c.home, c.method, c.url, err)
		}
	}
}

func TestRegistryNames(t *testing.T) {
	for host, want := range map[string]string{"docker.io": "index.docker.io", "ghcr.io": "ghcr.io",
		"127.0.0.1:5000": "127.0.0.1:5000", "": "", "a/b": "", "https://x": ""} {
		if got, err := Name(host); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", host, got, err)
		}
	}
	for reference, want := range map[string]string{"python:3.12": "index.docker.io", "ghcr.io/a/b": "ghcr.io",
		"Not One": ""} {
		if got := Of(reference); got != want {
			t.Errorf("%q: %q", reference, got)
		}
	}
}
