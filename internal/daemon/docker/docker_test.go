package docker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/guest/agent"
)

func TestMain(m *testing.M) { apirig.Main(m, agent.Main) }

// rig is a daemon with an image, and a client of its Docker socket.
type rig struct {
	*apirig.Rig
	t      *testing.T
	socket string
	http   *http.Client
}

func start(t *testing.T) *rig { return startWith(t, apirig.Options{}) }

func startWith(t *testing.T, o apirig.Options) *rig {
	t.Helper()
	o.Agent = apirig.SelfAgent
	r := &rig{Rig: apirig.Start(t, o), t: t}
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	r.socket = r.ServeDocker(t)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", r.socket)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	r.http = &http.Client{Transport: transport}
	return r
}

// send makes a request of version 1.44, and returns the answer with its body.
func (r *rig) send(method, path, body string) (*http.Response, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, "http://docker/v1.44"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := r.http.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp, string(p)
}

// call makes a request. The answer must have the given status. If v is not nil, call decodes the
// answer into v. The answer of a refused request must be an error in Docker's form.
func (r *rig) call(method, path, body string, want int, v any) string {
	r.t.Helper()
	resp, text := r.send(method, path, body)
	if resp.StatusCode != want {
		r.t.Fatalf("%s %s %s: %s %s, want %d", method, path, body, resp.Status, text, want)
	}
	if want >= 400 {
		var e struct{ Message, Code string }
		if json.Unmarshal([]byte(text), &e) != nil || e.Message == "" || e.Code == "" {
			r.t.Errorf("%s %s: the error %q is not Docker's", method, path, text)
		}
	}
	if v != nil {
		if err := json.Unmarshal([]byte(text), v); err != nil {
			r.t.Fatalf("%s %s: %q: %v", method, path, text, err)
		}
	}
	return text
}

// create makes a container of the image a.b with further fields, and returns its id.
func (r *rig) create(query, fields string) string {
	r.t.Helper()
	var made struct {
		ID string `json:"Id"`
	}
	r.call("POST", "/containers/create"+query, `{"Image":"a.b"`+fields+`}`, 201, &made)
	return made.ID
}

// wait waits for the end of a container, and returns its exit code.
func (r *rig) wait(id string) int {
	r.t.Helper()
	var end struct{ StatusCode int }
	r.call("POST", "/containers/"+id+"/wait", "", 200, &end)
	return end.StatusCode
}

type state struct {
	Status   string
	Running  bool
	ExitCode int
	Error    string
}

// state returns the state of a container.
func (r *rig) state(id string) state {
	r.t.Helper()
	var c struct{ State state }
	r.call("GET", "/containers/"+id+"/json", "", 200, &c)
	return c.State
}

// frames() divides multiplexed output into the output to stdout and the output to stderr.
func frames(t *testing.T, p []byte) (stdout, stderr string) {
	t.Helper()
	for len(p) > 0 {
		if len(p) < 8 {
			t.Fatalf("%q: not a frame", p)
		}
		n := int(p[4])<<24 | int(p[5])<<16 | int(p[6])<<8 | int(p[7])
		if len(p) < 8+n {
			t.Fatalf("%q: the frame has %d bytes", p, n)
		}
		switch text := string(p[8 : 8+n]); p[0] {
		case 1:
			stdout += text
		case 2:
			stderr += text
		default:
			t.Fatalf("%q: stream %d", p, p[0])
		}
		p = p[8+n:]
	}
	return stdout, stderr
}

func TestSystem(t *testing.T) {
	r := start(t)
	resp, body := r.send("GET", "/_ping", "")
	if h := resp.Header; resp.StatusCode != 200 || body != "OK" || h.Get("Api-Version") == "" ||
		h.Get("Ostype") != "linux" {
		t.Errorf("ping: %s %q %v", resp.Status, body, resp.Header)
	}
	if resp, body := r.send("HEAD", "/_ping", ""); resp.StatusCode != 200 || body != "" {
		t.Errorf("HEAD: %s %q", resp.Status, body)
	}
	var v struct{ Version, ApiVersion, MinAPIVersion string }
	if r.call("GET", "/version", "", 200, &v); v.Version != "test" || v.ApiVersion != "1.47" || v.MinAPIVersion != "1.41" {
		t.Errorf("version: %+v", v)
	}
	r.create("?name=one", "")
	var i struct{ Images, Containers int }
	if r.call("GET", "/info", "", 200, &i); i.Images != 1 || i.Containers != 1 {
		t.Errorf("info: %+v", i)
	}
	for path, want := range map[string]int{"/v1.40/_ping": 400, "/v1.41/_ping": 200, "/v1.47/_ping": 200,
		"/v1.99/_ping": 400, "/v2.0/_ping": 400, "/_ping": 200} {
		resp, err := r.http.Get("http://docker" + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, resp.Status, want)
		}
	}
	for _, path := range []string{"/networks/create", "/volumes/create", "/swarm/init", "/build"} {
		if text := r.call("POST", path, "{}", 400, nil); !strings.Contains(text, strings.Split(path, "/")[1]) {
			t.Errorf("%s: %s", path, text)
		}
	}
	if text := r.call("GET", "/volumes", "", 400, nil); !strings.Contains(text, "forkd volume") {
		t.Error(text)
	}
	r.call("GET", "/nothing", "", 404, nil)
}

func TestImages(t *testing.T) {
	r := start(t)
	var list []struct {
		ID       string `json:"Id"`
		RepoTags []string
	}
	if r.call("GET", "/images/json", "", 200, &list); len(list) != 1 || list[0].RepoTags[0] != "a.b:latest" {
		t.Fatalf("list: %+v", list)
	}
	for _, name := range []string{"a.b", "a.b:latest", "a:b", "docker.io/library/a.b", list[0].ID, list[0].ID[7:19]} {
		var i struct {
			ID string `json:"Id"`
		}
		if r.call("GET", "/images/"+name+"/json", "", 200, &i); i.ID != list[0].ID {
			t.Errorf("%s: %+v", name, i)
		}
	}
	for _, name := range []string{"b", "a.b:c", "x/y", "ffff0000"} {
		if text := r.call("GET", "/images/"+name+"/json", "", 404, nil); !strings.Contains(text, "No such image") {
			t.Errorf("%s: %s", name, text)
		}
	}
	text := r.call("POST", "/containers/create", `{"Image":"none"}`, 404, nil)
	if !strings.Contains(text, "No such image: none:latest") {
		t.Error(text)
	}
	filter := func(text string) (n int) {
		list = nil
		r.call("GET", "/images/json?filters="+text, "", 200, &list)
		return len(list)
	}
	if filter(`{"reference":["a*"]}`) != 1 || filter(`{"reference":["b"]}`) != 0 ||
		filter(`{"dangling":{"true":true}}`) != 0 {
		t.Error("filters")
	}
	r.call("GET", `/images/json?filters={"other":["x"]}`, "", 400, nil)
}

func TestLifeOfAContainer(t *testing.T) {
	r := start(t)
	id := r.create("?name=job", `,"Cmd":["sh","-c","echo out; echo err >&2; exit 3"],"Env":["A=1"],"Labels":{"k":"v"}`)
	if s := r.state("job"); s.Status != "created" || s.Running {
		t.Errorf("created: %+v", s)
	}
	r.call("POST", "/containers/create?name=job", `{"Image":"a.b"}`, 409, nil)
	r.call("POST", "/containers/job/start", "", 204, nil)
	if code := r.wait(id[:12]); code != 3 {
		t.Errorf("exit code %d", code)
	}
	if s := r.state(id); s.Status != "exited" || s.ExitCode != 3 {
		t.Errorf("exited: %+v", s)
	}
	_, logs := r.send("GET", "/containers/job/logs?stdout=1&stderr=1", "")
	if out, err := frames(t, []byte(logs)); out != "out\n" || err != "err\n" {
		t.Errorf("logs: %q %q", out, err)
	}
	_, logs = r.send("GET", "/containers/job/logs?stdout=1&timestamps=1&since=1", "")
	if out, _ := frames(t, []byte(logs)); !strings.HasSuffix(out, "Z out\n") {
		t.Errorf("timestamps: %q", out)
	}
	if _, logs := r.send("GET", "/containers/job/logs?stdout=1&tail=0", ""); logs != "" {
		t.Errorf("tail=0: %q", logs)
	}
	r.call("GET", "/containers/job/logs", "", 400, nil)
	r.call("POST", "/containers/job/start", "", 204, nil) // again
	if code := r.wait("job"); code != 3 {
		t.Errorf("second exit code %d", code)
	}
	r.call("POST", "/containers/job/rename?name=other", "", 204, nil)
	r.call("GET", "/containers/job/json", "", 404, nil)
	r.call("POST", "/containers/other/stop", "", 304, nil)
	r.call("DELETE", "/containers/other", "", 204, nil)
	r.call("GET", "/containers/other/json", "", 404, nil)
	r.create("?name=other", "")
}

func TestRunningContainer(t *testing.T) {
	r := start(t)
	id := r.create("?name=loop", `,"Entrypoint":["sh"],
		"Cmd":["-c","trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done"]`)
	r.call("POST", "/containers/loop/start", "", 204, nil)
	r.call("POST", "/containers/loop/start", "", 304, nil)
	resp, err := r.http.Get("http://docker/v1.44/containers/loop/logs?stdout=1&follow=1")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	line := make([]byte, 8+len("ready\n"))
	if _, err := io.ReadFull(resp.Body, line); err != nil || !bytes.HasSuffix(line, []byte("ready\n")) {
		t.Fatalf("follow: %q %v", line, err)
	}
	r.call("DELETE", "/containers/loop", "", 409, nil)
	r.call("POST", "/containers/loop/pause", "", 204, nil)
	if s := r.state(id); s.Status != "paused" {
		t.Errorf("paused: %+v", s)
	}
	r.call("POST", "/containers/loop/pause", "", 409, nil)
	r.call("POST", "/containers/loop/start", "", 409, nil)
	r.call("POST", "/containers/loop/unpause", "", 204, nil)
	r.call("POST", "/containers/loop/unpause", "", 409, nil)
	r.call("POST", "/containers/loop/kill?signal=nonsense", "", 400, nil)
	r.call("POST", "/containers/loop/stop", "", 204, nil)
	if s := r.state(id); s.Status != "exited" || s.ExitCode != 7 {
		t.Errorf("stopped: %+v", s)
	}
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != 0 {
		t.Errorf("the followed log ends with %q %v", rest, err)
	}
	r.call("POST", "/containers/loop/kill", "", 409, nil)
	r.call("POST", "/containers/loop/restart", "", 204, nil)
	r.call("POST", "/containers/loop/kill", "", 204, nil)
	if code := r.wait("loop"); code != 137 {
		t.Errorf("killed: exit code %d", code)
	}
}

// bearer adds the token of the rig to requests.
type bearer struct{ http.RoundTripper }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+apirig.Token)
	return b.RoundTripper.RoundTrip(r)
}
