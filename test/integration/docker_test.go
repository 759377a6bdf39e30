package integration_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// dockerClient is a client of a daemon's Docker socket.
type dockerClient struct {
	http   *http.Client
	socket string
}

func newDockerClient(t *testing.T, socket string) *dockerClient {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &dockerClient{&http.Client{Transport: transport}, socket}
}

// call makes a request that must have the given status, and returns the body of the answer. If v is
// not nil, it also decodes the body into v.
func (c *dockerClient) call(t *testing.T, method, path, body string, want int, v any) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bakeLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://docker/v1.44"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != want {
		t.Fatalf("%s %s: %s %s, %v, want %d", method, path, resp.Status, p, err, want)
	}
	if v != nil {
		if err := json.Unmarshal(p, v); err != nil {
			t.Fatalf("%s %s: %q: %v", method, path, p, err)
		}
	}
	return string(p)
}

// create makes a container, and returns the id of its sandbox.
func (c *dockerClient) create(t *testing.T, name, body string) (sandbox string) {
	t.Helper()
	c.call(t, "POST", "/containers/create?name="+name, body, 201, nil)
	var i struct{ ForkdSandbox string }
	c.call(t, "GET", "/containers/"+name+"/json", "", 200, &i)
	return i.ForkdSandbox
}

// wait returns the exit code of a container.
func (c *dockerClient) wait(t *testing.T, name string) int {
	t.Helper()
	var end struct{ StatusCode int }
	c.call(t, "POST", "/containers/"+name+"/wait", "", 200, &end)
	return end.StatusCode
}

// exec runs a command in a container, and returns its output, with both streams in one string.
func (c *dockerClient) exec(t *testing.T, name string, args ...string) (output string, code int) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"Cmd": args, "AttachStdout": true, "AttachStderr": true})
	if err != nil {
		t.Fatal(err)
	}
	var made struct {
		ID string `json:"Id"`
	}
	c.call(t, "POST", "/containers/"+name+"/exec", string(body), 201, &made)
	text := c.call(t, "POST", "/exec/"+made.ID+"/start", "{}", 200, nil)
	for p := text; len(p) >= 8; {
		n := int(p[4])<<24 | int(p[5])<<16 | int(p[6])<<8 | int(p[7])
		output += p[8 : 8+n]
		p = p[8+n:]
	}
	var end struct{ ExitCode *int }
	eventually(t, quietLimit, func() error {
		c.call(t, "GET", "/exec/"+made.ID+"/json", "", 200, &end)
		if end.ExitCode == nil {
			return fmt.Errorf("exec %q has not ended", args)
		}
		return nil
	})
	return output, *end.ExitCode
}

// TestDocker uses containers over the Docker Engine API: their life, execs, files, an image of a
// running container, and a daemon that is killed meanwhile.
func TestDocker(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "docker.sock")
	d := load(t).start(t, withArgs("--docker-socket", socket))
	c := newDockerClient(t, socket)

	c.create(t, "job", `{"Image":"parent","Cmd":["sh","-c","echo out; cat /etc/hostname; exit 3"]}`)
	c.call(t, "POST", "/containers/job/start", "", 204, nil)
	if code := c.wait(t, "job"); code != 3 {
		t.Errorf("exit code %d", code)
	}
	if logs := c.call(t, "GET", "/containers/job/logs?stdout=1", "", 200, nil); !strings.Contains(logs, "out\n") {
		t.Errorf("logs: %q", logs)
	}
	c.call(t, "DELETE", "/containers/job", "", 204, nil)

	box := c.create(t, "loop", `{"Image":"parent","Env":["OWN=1"],"WorkingDir":"/srv/new",
		"Cmd":["sh","-c","trap 'exit 7' TERM; touch /tmp/ready; while :; do sleep 0.1; done"]}`)
	c.call(t, "POST", "/containers/loop/start", "", 204, nil)
	c.exec(t, "loop", "sh", "-c", "until [ -e /tmp/ready ]; do sleep 0.1; done")
	if out, code := c.exec(t, "loop", "sh", "-c", "pwd; echo $OWN; exit 4"); out != "/srv/new\n1\n" || code != 4 {
		t.Errorf("exec: %q, exit code %d", out, code)
	}
	if out, code := c.exec(t, "loop", "no-such-command"); code != 127 {
		t.Errorf("missing command: %q, exit code %d", out, code)
	}
	d.alive(t, box) // the interpreter of the snapshot is warm in the container
	c.files(t)

	c.call(t, "POST", "/containers/loop/pause", "", 204, nil)
	c.call(t, "POST", "/containers/loop/unpause", "", 204, nil)
	c.call(t, "POST", "/commit?container=loop&repo=warm/loop&tag=1", "{}", 201, nil)
	c.create(t, "copy", `{"Image":"warm/loop:1"}`)
	c.call(t, "POST", "/containers/copy/start", "", 204, nil)
	if out, code := c.exec(t, "copy", "cat", "/srv/new/a"); out != "content" || code != 0 {
		t.Errorf("the image of a running container: %q, exit code %d", out, code)
	}
	c.call(t, "DELETE", "/containers/copy?force=1", "", 204, nil)
	c.call(t, "DELETE", "/images/warm/loop:1", "", 200, nil)

	d.crash(t)
	d.launch(t)
	c = newDockerClient(t, socket)
	c.call(t, "POST", "/containers/loop/stop?t=60", "", 204, nil)
	if code := c.wait(t, "loop"); code != 7 {
		t.Errorf("exit code %d after the daemon was killed", code)
	}
	// The sandbox of an exited container can be suspended, and starts again.
	if _, err := d.Suspend(d.ctx(t, quietLimit), box); err != nil {
		t.Fatal(err)
	}
	c.call(t, "GET", "/containers/loop/archive?path=/srv/new/a", "", 200, nil) // resumes the container's sandbox
	c.call(t, "POST", "/containers/loop/start", "", 204, nil)
	c.call(t, "POST", "/containers/loop/kill", "", 204, nil)
	if code := c.wait(t, "loop"); code != 137 {
		t.Errorf("exit code %d after SIGKILL", code)
	}
	c.call(t, "DELETE", "/containers/loop", "", 204, nil)
	d.only(t)
}

// files copies a file into a container and back.
func (c *dockerClient) files(t *testing.T) {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: "a", Mode: 0o600, Size: 7}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, "content"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	c.call(t, "PUT", "/containers/loop/archive?path=/srv/new", archive.String(), 200, nil)
	tree := c.call(t, "GET", "/containers/loop/archive?path=/srv/new", "", 200, nil)
	names := ""
	for r := tar.NewReader(strings.NewReader(tree)); ; {
		h, err := r.Next()
		if err != nil {
			break // the end; a damaged archive has too few names
		}
		names += h.Name + " "
	}
	if names != "new/ new/a " {
		t.Errorf("the directory has %q", names)
	}
}

// TestDockerPorts reaches a server in a container through a published port. It also uses sandboxes
// of forkd's own API as containers.
func TestDockerPorts(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "docker.sock")
	d := load(t).start(t, withArgs("--docker-socket", socket))
	c := newDockerClient(t, socket)
	c.create(t, "web", `{"Image":"parent","Cmd":["python3","-m","http.server","8000","-d","/etc"],
		"HostConfig":{"PortBindings":{"8000/tcp":[{}]}}}`)
	c.call(t, "POST", "/containers/web/start", "", 204, nil)
	var i struct {
		NetworkSettings struct {
			Ports map[string][]struct{ HostPort string }
		}
	}
	c.call(t, "GET", "/containers/web/json", "", 200, &i)
	bindings := i.NetworkSettings.Ports["8000/tcp"]
	if len(bindings) != 1 {
		t.Fatalf("%+v", i)
	}
	browser := http.Client{Timeout: 30 * time.Second}
	eventually(t, quietLimit, func() error { // the server starts
		resp, err := browser.Get("http://127.0.0.1:" + bindings[0].HostPort + "/hostname")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		p, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 200 || len(p) == 0 {
			return fmt.Errorf("%s %q %w", resp.Status, p, err)
		}
		return nil
	})
	c.call(t, "DELETE", "/containers/web?force=1", "", 204, nil)

	box := d.fork(t, 1)[0]
	if out, code := c.exec(t, box.ID, "echo", "hello"); out != "hello\n" || code != 0 {
		t.Errorf("exec in a sandbox: %q, exit code %d", out, code)
	}
	c.call(t, "POST", "/containers/"+box.ID+"/stop", "", 204, nil)
	if s, err := d.Sandbox(d.ctx(t, quietLimit), box.ID); err != nil || s.State != "suspended" {
		t.Errorf("stopped: %+v, %v", s, err)
	}
	c.call(t, "POST", "/containers/"+box.ID+"/start", "", 204, nil)
	d.alive(t, box.ID)
	c.call(t, "DELETE", "/containers/"+box.ID+"?force=1", "", 204, nil)
	d.only(t)
}
