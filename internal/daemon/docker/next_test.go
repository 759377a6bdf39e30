package docker_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/daemon/docker"
	"github.com/forkd/forkd/internal/format/record"
)

// next replaces the daemon's Docker server by a new one, which has only the files of the old one.
func (r *rig) next() *docker.Server {
	r.t.Helper()
	return r.nextWith(func() {})
}

// nextWith is like next, but it calls between() while no server runs.
func (r *rig) nextWith(between func()) *docker.Server {
	r.t.Helper()
	r.Docker.Close()
	between()
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
	return next
}

// record changes the record of a container that no daemon has open.
func (r *rig) record(sandbox string, change func(c *record.Container)) {
	r.t.Helper()
	path := filepath.Join(r.Docker.Dir, sandbox+".json")
	p, err := os.ReadFile(path)
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := record.ParseContainer(path, p)
	if err != nil {
		r.t.Fatal(err)
	}
	change(c)
	if p, err = record.EncodeContainer(c); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, p, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// sandboxOf returns the id of a container's sandbox.
func (r *rig) sandboxOf(container string) string {
	r.t.Helper()
	var c struct{ ForkdSandbox string }
	r.call("GET", "/containers/"+container+"/json", "", 200, &c)
	return c.ForkdSandbox
}

// Before a command begins, the record says that the command may be running. If a daemon is killed
// while it starts a command, the next daemon finds the process and does not start the command
// again.
func TestDaemonKilledWhileItStartsACommand(t *testing.T) {
	r := start(t)
	dir := t.TempDir()
	script := `for f in "$0"/*.json; do cp "$f" "$1"; done; echo run >> "$1/runs"; exec sleep 600`
	command, err := json.Marshal([]string{"sh", "-c", script, r.Docker.Dir, dir})
	if err != nil {
		t.Fatal(err)
	}
	r.create("?name=job", `,"Cmd":`+string(command))
	sandbox := r.sandboxOf("job")
	r.call("POST", "/containers/job/start", "", 204, nil)
	runs := func() string {
		p, _ := os.ReadFile(filepath.Join(dir, "runs"))
		return string(p)
	}
	for begun := time.Now(); runs() == ""; time.Sleep(5 * time.Millisecond) {
		if time.Since(begun) > limit {
			t.Fatal("the command does not run")
		}
	}
	p, err := os.ReadFile(filepath.Join(dir, sandbox+".json"))
	if err != nil {
		t.Fatal(err)
	}
	r.nextWith(func() {
		if err := os.WriteFile(filepath.Join(r.Docker.Dir, sandbox+".json"), p, 0o600); err != nil {
			t.Fatal(err)
		}
		r.record(sandbox, func(c *record.Container) { c.PID = 0 })
	})
	if s := r.state("job"); s.Status != "running" {
		t.Errorf("%+v", s)
	}
	r.call("POST", "/containers/job/start", "", 304, nil)
	r.call("POST", "/containers/job/stop", "", 204, nil)
	if s := r.state("job"); s.ExitCode != 128+15 || runs() != "run\n" {
		t.Errorf("%+v, %q", s, runs())
	}
}

// If a daemon is killed before it has written the record of a new container, the next daemon does not
// take the container for a running sandbox of another API.
func TestDaemonKilledWhileItCreatesAContainer(t *testing.T) {
	r := start(t)
	id := r.create("", `,"Cmd":["sleep","600"]`)
	sandbox := r.sandboxOf(id)
	r.nextWith(func() {
		if err := os.Remove(filepath.Join(r.Docker.Dir, sandbox+".json")); err != nil {
			t.Fatal(err)
		}
	})
	if s := r.state(id); s.Status != "created" {
		t.Errorf("%+v", s)
	}
	r.call("POST", "/containers/"+id+"/start", "", 204, nil)
	r.call("POST", "/containers/"+id+"/stop?t=0", "", 204, nil)
	if s := r.state(id); s.Status != "exited" {
		t.Errorf("%+v", s)
	}
}

// If a process has ended before the next daemon looks for it, its exit code is unknown.
func TestProcessThatIsNotFound(t *testing.T) {
	r := start(t)
	r.running("?name=job")
	sandbox := r.sandboxOf("job")
	r.call("POST", "/containers/job/stop", "", 204, nil)
	r.nextWith(func() {
		r.record(sandbox, func(c *record.Container) { c.Status, c.PID, c.Finished = "running", 0, time.Time{} })
	})
	if code := r.wait("job"); code != 255 {
		t.Errorf("exit code %d", code)
	}
	if s := r.state("job"); !strings.Contains(s.Error, "while it started") {
		t.Errorf("%+v", s)
	}
}

// If a daemon is killed after the end of a container with --rm and before its removal, the next
// daemon removes the container. If the record is damaged, or if the daemon ended while it restarted
// the container, the next daemon removes nothing.
func TestNextDaemonRemoves(t *testing.T) {
	r := start(t)
	sandboxes := map[string]string{}
	for _, name := range []string{"ended", "damaged", "restarts"} {
		r.create("?name="+name, `,"Cmd":["sleep","600"],"HostConfig":{"AutoRemove":true}`)
		sandboxes[name] = r.sandboxOf(name)
	}
	r.nextWith(func() {
		r.record(sandboxes["ended"], func(c *record.Container) { c.Status, c.Finished = "exited", time.Now() })
		r.record(sandboxes["restarts"], func(c *record.Container) {
			c.Status, c.Finished, c.Restarts = "exited", time.Now(), true
		})
		if err := os.WriteFile(filepath.Join(r.Docker.Dir, sandboxes["damaged"]+".json"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	resp, _ := r.send("POST", "/containers/ended/wait?condition=removed", "")
	if resp.StatusCode != 200 && resp.StatusCode != 404 { // 404: the container is removed already
		t.Errorf("wait: %s", resp.Status)
	}
	r.call("GET", "/containers/ended/json", "", 404, nil)
	for _, name := range []string{"damaged", "restarts"} {
		if s := r.state(sandboxes[name]); s.Status != "exited" {
			t.Errorf("%s: %+v", name, s)
		}
	}
	r.call("POST", "/containers/restarts/start", "", 204, nil)
	r.call("POST", "/containers/restarts/stop", "", 204, nil)
	r.call("GET", "/containers/restarts/json", "", 404, nil)
}
