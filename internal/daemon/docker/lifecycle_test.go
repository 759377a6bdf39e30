package docker_test

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
)

// A restart stops a container that removes itself, but does not remove it.
func TestRestartOfAContainerThatRemovesItself(t *testing.T) {
	r := start(t)
	for name, command := range map[string]string{"job": `,"Cmd":["sleep","600"]`, "machine": ""} {
		id := r.create("?name="+name, command+`,"HostConfig":{"AutoRemove":true}`)
		r.call("POST", "/containers/"+name+"/start", "", 204, nil)
		r.call("POST", "/containers/"+name+"/restart?t=0", "", 204, nil)
		if s := r.state(id); s.Status != "running" {
			t.Errorf("%s after the restart: %+v", name, s)
		}
		r.call("POST", "/containers/"+name+"/stop?t=0", "", 204, nil)
		r.call("GET", "/containers/"+name+"/json", "", 404, nil)
	}
}

// holder adds a token to requests.
type holder struct {
	http.RoundTripper
	token string
}

func (h holder) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+h.token)
	return h.RoundTripper.RoundTrip(r)
}

// A client with the scope run does not get a low port of the host.
func TestLowPortOfAToken(t *testing.T) {
	r := startWith(t, apirig.Options{Tokens: []auth.Token{{Name: "ann", Scope: auth.Run}}})
	const body = `{"Image":"a.b","HostConfig":{"PortBindings":{"80/tcp":[{"HostPort":"1"}]}}}`
	r.call("POST", "/containers/create", body, 201, nil)
	r.http.Transport = holder{r.http.Transport, r.Tokens["ann"]}
	p, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	if text := strings.TrimSpace(string(p)); err == nil && (text == "0" || text == "1") {
		t.Skip("every user of this host may open low ports")
	}
	if text := r.call("POST", "/containers/create", body, 403, nil); !strings.Contains(text, "HostPort 1") {
		t.Error(text)
	}
}
