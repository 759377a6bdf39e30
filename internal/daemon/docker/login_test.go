package docker_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
)

// docker login asks the registry whether it accepts the credentials. Docker's clients send the name
// or the URL of the registry.
func TestLogin(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "me" || password != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	r := start(t)
	body := func(password, address string) string {
		return fmt.Sprintf(`{"username":"me","password":%q,"serveraddress":%q}`, password, address)
	}
	for _, address := range []string{host, server.URL, server.URL + "/v1/"} {
		var answer struct{ Status, IdentityToken string }
		if r.call("POST", "/auth", body("secret", address), 200, &answer); answer.Status != "Login Succeeded" {
			t.Errorf("%s: %+v", address, answer)
		}
	}
	if text := r.call("POST", "/auth", body("guess", host), 403, nil); !strings.Contains(text, "denied_by_registry") ||
		strings.Contains(text, "guess") {
		t.Error(text)
	}
	if text := r.call("POST", "/auth", body("secret", "a b"), 400, nil); !strings.Contains(text, "serveraddress") {
		t.Error(text)
	}
	for _, nothing := range []string{"", "{}", `{"serveraddress":"` + host + `"}`} {
		r.call("POST", "/auth", nothing, 400, nil)
	}
}

// docker login makes the daemon connect to a server, so it needs the scope of a pull.
func TestLoginScope(t *testing.T) {
	r := startWith(t, apirig.Options{Tokens: []auth.Token{{Name: "user", Scope: auth.Run}}})
	text := r.as("user").call("POST", "/auth", `{"username":"me","password":"secret","serveraddress":"localhost:1"}`, 403, nil)
	if !strings.Contains(text, "admin") {
		t.Error(text)
	}
}
