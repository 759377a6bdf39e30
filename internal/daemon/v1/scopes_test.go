package v1

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/apitest"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
)

// Exactly these routes need no token.
func TestOpenRoutes(t *testing.T) {
	want := []string{"GET /docs", "GET /healthz", "GET /healthz/{$}", "GET /openapi.json", "GET /openapi.yaml",
		"GET /readyz"}
	var got []string
	for _, row := range newAPI(Config{Face: face.New(face.Config{})}).routes() {
		if row.scope == open {
			got = append(got, row.pattern)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("open routes %q, want %q", got, want)
	}
}

// Every route refuses clients without a token, clients with a wrong token, and clients with a lower
// scope than the route requires.
func TestEveryRouteWantsItsScope(t *testing.T) {
	var file []byte
	secrets := map[auth.Scope]string{}
	for _, s := range []auth.Scope{auth.Read, auth.Run} {
		var err error
		if file, secrets[s], err = auth.Add(file, auth.Token{Name: s.String(), Scope: s}, false); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := auth.OpenTokens(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	f := face.New(face.Config{Guard: &auth.Guard{Tokens: tokens}, Log: slog.New(slog.DiscardHandler)})
	h := New(Config{Face: f}) // the handlers are never called
	ask := func(route, token string) int {
		method, path, _ := strings.Cut(route, " ")
		path = strings.NewReplacer("{id}", "sb-x", "{port}", "80", "{tag}", "a", "{name}", "n", "{path}", "p").Replace(path)
		r := httptest.NewRequest(method, path, nil)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	scopes := map[string]auth.Scope{PortRoute: PortScope}
	for _, row := range newAPI(Config{Face: face.New(face.Config{})}).routes() {
		scopes[row.pattern] = row.scope
	}
	refusals := 0
	for _, route := range apitest.Routes(t) {
		want := scopes[route]
		if want == open {
			continue
		}
		for _, token := range []string{"", "not-a-token-of-ours"} {
			if got := ask(route, token); got != http.StatusUnauthorized {
				t.Errorf("%s with token %q: %d, want 401", route, token, got)
			}
		}
		for have, secret := range secrets {
			if have >= want {
				continue
			}
			if got := ask(route, secret); got != http.StatusForbidden {
				t.Errorf("%s, which wants %s, with a token of %s: %d, want 403", route, want, have, got)
			}
			refusals++
		}
	}
	if refusals == 0 {
		t.Error("no route wants more than another")
	}
}

// Every route has a gate, so that the number of concurrent requests is limited.
func TestEveryRouteHasAGate(t *testing.T) {
	f := face.New(face.Config{})
	for _, row := range newAPI(Config{Face: f}).routes() {
		if row.gate == nil || row.gate == f.Carried && !strings.Contains(row.pattern, "/tcp/") {
			t.Errorf("%s is not bounded", row.pattern)
		}
	}
}
