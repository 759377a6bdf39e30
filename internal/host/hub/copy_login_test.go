package hub

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/forkd/forkd/internal/registry"
)

// locked configures a registry to require a login. Blobs come from another server, which must not
// see the login.
func locked(t *testing.T, s *served, password string, leaked *atomic.Value) {
	t.Helper()
	open := s.Config.Handler
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if login := r.Header.Get("Authorization"); login != "" {
			leaked.Store(login)
		}
		r.SetBasicAuth("me", password)
		r.Header.Set("X-Direct", "yes")
		open.ServeHTTP(w, r)
	}))
	t.Cleanup(other.Close)
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		_, given, _ := r.BasicAuth()
		switch {
		case given != password:
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
		case r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") && r.Header.Get("X-Direct") == "":
			http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
		default:
			inner.ServeHTTP(w, r)
		}
	})
}

// Each registry gets its own credentials only. With wrong credentials a copy fails, and the error
// names the registry.
func TestCopyLogins(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, d, a, b := serve(t), serve(t), newHost(t).hasty(), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	a.push(t, "parent", s.host+"/team/py:1")
	var leaked atomic.Value
	locked(t, s, "of-source", &leaked)
	locked(t, d, "of-target", &leaked)
	login := func(password string) *registry.Login { return &registry.Login{User: "me", Password: password} }
	from, to := remoteOf(t, s.host+"/team/py:1"), remoteOf(t, d.host+"/team/py:1")
	for _, c := range []struct{ source, target, refuses string }{
		{"wrong", "of-target", s.host}, {"of-source", "wrong", d.host},
		{"of-target", "of-source", s.host}, {"of-source", "of-source", d.host},
	} {
		_, err := b.Copy(t.Context(), "ann", from.With(login(c.source)), to.With(login(c.target)), ignore)
		var failed *RegistryError
		if !errors.As(err, &failed) || failed.Registry != c.refuses || failed.Status != http.StatusUnauthorized ||
			strings.Contains(err.Error(), c.source) || strings.Contains(err.Error(), c.target) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	to = to.With(login("of-target"))
	if _, err := b.Copy(t.Context(), "ann", from.With(login("of-source")), to, ignore); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Pull(t.Context(), "ann", "", to, ignore); err != nil {
		t.Error(err)
	}
	if login := leaked.Load(); login != nil {
		t.Errorf("another server received %q", login)
	}
}
