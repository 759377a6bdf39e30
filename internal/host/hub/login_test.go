package hub

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/registry"
)

// requireLogin configures a registry to require the password "secret" of the user "me". If tokens
// is true, the registry issues a token for the password, and requires the token.
func requireLogin(s *served, tokens bool) {
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		user, password, _ := r.BasicAuth()
		right := user == "me" && password == "secret"
		switch {
		case r.URL.Path == "/token" && right:
			fmt.Fprint(w, `{"token": "pass"}`)
		case !tokens && right, tokens && r.Header.Get("Authorization") == "Bearer pass":
			inner.ServeHTTP(w, r)
		default:
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			if tokens {
				w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="test"`, s.URL))
			}
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
}

// A login is checked with the registry, whether the registry asks for passwords or for tokens.
func TestCheckLogin(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	h := newHost(t).hasty()
	for _, tokens := range []bool{false, true} {
		s := serve(t)
		requireLogin(s, tokens)
		if err := h.CheckLogin(t.Context(), "host", s.host, registry.Login{User: "me", Password: "secret"}); err != nil {
			t.Errorf("tokens %v: %v", tokens, err)
		}
		var refused *RegistryError
		err := h.CheckLogin(t.Context(), "host", s.host, registry.Login{User: "me", Password: "guess"})
		if !errors.As(err, &refused) || refused.Status != http.StatusUnauthorized {
			t.Errorf("tokens %v: a wrong password: %v", tokens, err)
		}
	}
}

func TestCheckLoginOfNoRegistry(t *testing.T) {
	h := newHost(t).hasty()
	for _, host := range []string{"", "a b", "-/x"} {
		var field *invalid.Error
		if err := h.CheckLogin(t.Context(), "host", host, registry.Login{User: "me"}); !errors.As(err, &field) ||
			field.Field != "host" {
			t.Errorf("%q: %v", host, err)
		}
	}
	s := serve(t)
	s.Close()
	var failed *RegistryError
	if err := h.CheckLogin(t.Context(), "host", s.host, registry.Login{User: "me"}); !errors.As(err, &failed) ||
		failed.Status != 0 {
		t.Errorf("a registry that is gone: %v", err)
	}
}
