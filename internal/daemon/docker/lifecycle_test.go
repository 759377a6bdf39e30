package docker_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/docker"
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

// The output of a container is in a file while its sandbox is suspended. Clients read it as before,
// also from the next daemon, and rm removes it.
func TestOutputOfASuspendedContainer(t *testing.T) {
	r := start(t)
	id := r.create("?name=job", `,"Cmd":["sh","-c","echo out; echo err >&2"]`)
	var c struct{ ForkdSandbox string }
	r.call("GET", "/containers/job/json", "", 200, &c)
	file := filepath.Join(r.Docker.Dir, c.ForkdSandbox+".log")
	run := func() {
		t.Helper()
		r.call("POST", "/containers/job/start", "", 204, nil)
		r.wait("job")
		if _, err := r.Suspend(t.Context(), c.ForkdSandbox); err != nil {
			t.Fatal(err)
		}
	}
	logs := func() string {
		t.Helper()
		_, text := r.send("GET", "/containers/job/logs?stdout=1&stderr=1", "")
		stdout, stderr := frames(t, []byte(text))
		return stdout + stderr
	}
	run()
	for begun := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			break
		}
		if time.Since(begun) > limit {
			t.Fatal("the output is not stored")
		}
	}
	if got := logs(); got != "out\nerr\n" {
		t.Errorf("suspended: %q", got)
	}
	run()
	if got := logs(); got != "out\nout\nerr\nerr\n" {
		t.Errorf("after a second run: %q", got)
	}
	r.next()
	if got := logs(); !strings.HasPrefix(got, "out\n") {
		t.Errorf("of the next daemon: %q", got)
	}
	r.call("DELETE", "/containers/"+id, "", 204, nil)
	if left, err := os.ReadDir(r.Docker.Dir); err != nil || len(left) != 0 {
		t.Errorf("a removed container leaves %v, %v", left, err)
	}
}

// next replaces the daemon's Docker server by a new one, which has only the files of the old one.
func (r *rig) next() {
	r.t.Helper()
	r.Docker.Close()
	next, err := docker.New(r.Docker.Config)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(next.Close)
	server := httptest.NewServer(next)
	r.t.Cleanup(server.Close)
	r.http.Transport = bearer{&http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", server.Listener.Addr().String())
	}}}
}
