package docker_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/docker"
)

// listed is a container in a list.
type listed struct {
	ID    string `json:"Id"`
	Names []string
	State string
}

func (r *rig) list(query string) (list []listed) {
	r.t.Helper()
	r.call("GET", "/containers/json?"+query, "", 200, &list)
	return list
}

func TestList(t *testing.T) {
	r := start(t)
	r.create("?name=idle", `,"Labels":{"app":"x","tier":"1"}`)
	up := r.running("?name=up")
	if list := r.list(""); len(list) != 1 || list[0].ID != up || list[0].Names[0] != "/up" || list[0].State != "running" {
		t.Errorf("running: %+v", list)
	}
	for filters, want := range map[string]string{
		`{"label":["app"]}`:            "idle",
		`{"label":["app=x","tier=1"]}`: "idle",
		`{"label":{"app=x":true}}`:     "idle",
		`{"label":["app=y"]}`:          "",
		`{"name":["^/up$"]}`:           "up",
		`{"name":["u"]}`:               "up",
		`{"status":["created"]}`:       "idle",
		`{"id":["` + up[:5] + `"]}`:    "up",
		`{"ancestor":["b"]}`:           "",
	} {
		list, names := r.list("all=1&filters="+url.QueryEscape(filters)), ""
		for _, c := range list {
			names += strings.TrimPrefix(c.Names[0], "/")
		}
		if names != want {
			t.Errorf("%s: %q, want %q", filters, names, want)
		}
	}
	if list := r.list("limit=1"); len(list) != 1 {
		t.Errorf("limit: %+v", list)
	}
	r.call("GET", "/containers/json?filters=x", "", 400, nil)
	r.call("GET", `/containers/json?filters={"volume":["x"]}`, "", 400, nil)
	r.call("GET", "/containers/json?limit=x", "", 400, nil)
}

// The daemon does not hold a whole list in memory, so it does not know the length of the answer.
func TestListsAreWrittenInParts(t *testing.T) {
	r := start(t)
	for range 4 {
		r.create("", "")
	}
	for path, want := range map[string]int{"/containers/json?all=1": 4, "/images/json": 1} {
		req := httptest.NewRequest("GET", path, nil)
		req.Header.Set("Authorization", "Bearer "+apirig.Token)
		w := httptest.NewRecorder()
		r.Docker.ServeHTTP(w, req)
		var list []any
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || len(list) != want {
			t.Errorf("%s: %d of %d, %v", path, len(list), want, err)
		}
		if length := w.Header().Get("Content-Length"); length != "" {
			t.Errorf("%s: the answer was held whole: its length is %s", path, length)
		}
	}
}

// Sandboxes of /v1 are containers without a main process, and containers are sandboxes of /v1.
func TestSandboxesAreContainers(t *testing.T) {
	r := start(t)
	f, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	if s := r.state(id); s.Status != "running" {
		t.Errorf("%+v", s)
	}
	r.call("POST", "/containers/"+id+"/start", "", 304, nil)
	r.call("POST", "/containers/"+id+"/kill?signal=USR1", "", 409, nil)
	r.call("POST", "/containers/"+id+"/stop", "", 204, nil)
	if i, err := r.Sandbox(t.Context(), id); err != nil || i.State != "suspended" || r.state(id).Status != "exited" {
		t.Errorf("stopped: %+v, %v", i, err)
	}
	r.call("POST", "/containers/"+id+"/start", "", 204, nil)
	if s := r.state(id); s.Status != "running" {
		t.Errorf("started: %+v", s)
	}
	var c struct {
		Sandbox string `json:"ForkdSandbox"`
	}
	own := r.running("?name=own")
	r.call("GET", "/containers/own/json", "", 200, &c)
	ended := make(chan int, 1)
	go func() {
		resp, err := r.http.Post("http://docker/v1.44/containers/"+own+"/wait?condition=removed", "", nil)
		if err != nil {
			ended <- 0
			return
		}
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
		ended <- resp.StatusCode
	}()
	if err := r.Kill(t.Context(), c.Sandbox); err != nil {
		t.Fatal(err)
	}
	select {
	case status := <-ended:
		if status != 200 && status != 404 { // 404: the wait began after the kill
			t.Errorf("wait: status %d", status)
		}
	case <-time.After(limit):
		t.Fatal("the client still waits for a container that was deleted")
	}
	r.call("GET", "/containers/own/json", "", 404, nil)
	r.create("?name=own", "")
}

// A container without a command runs what its image runs.
func TestContainerWithoutACommand(t *testing.T) {
	r := start(t)
	id := r.create("?name=mm", "")
	r.call("POST", "/containers/mm/start", "", 204, nil)
	if s := r.state(id); s.Status != "running" {
		t.Errorf("%+v", s)
	}
	e := r.exec(id, `{"Cmd":["true"]}`)
	r.call("POST", "/exec/"+e+"/start", `{"Detach":true}`, 200, nil)
	if code := r.exitCode(e); code != 0 {
		t.Errorf("exec: %d", code)
	}
	if resp, _ := r.send("GET", "/containers/mm/logs?stdout=1&tail=5", ""); resp.StatusCode != 200 {
		t.Errorf("logs: %s", resp.Status)
	}
	r.call("POST", "/containers/mm/kill", "", 204, nil)
	if s := r.state(id); s.Status != "exited" || s.ExitCode != 137 {
		t.Errorf("killed: %+v", s)
	}
	r.call("POST", "/containers/mm/start", "", 204, nil)
	if s := r.state(id); s.Status != "running" {
		t.Errorf("%+v", s)
	}
}

func TestUpdate(t *testing.T) {
	r := start(t)
	id := r.create("?name=uu", "")
	r.call("POST", "/containers/uu/update", `{"NanoCpus":1500000000,"CpuShares":512,
		"RestartPolicy":{"Name":"","MaximumRetryCount":0}}`, 200, nil)
	var c struct{ HostConfig struct{ NanoCpus int64 } }
	if r.call("GET", "/containers/"+id+"/json", "", 200, &c); c.HostConfig.NanoCpus != 1500000000 {
		t.Errorf("%+v", c)
	}
	r.call("POST", "/containers/uu/update", `{"RestartPolicy":{"Name":"always"}}`, 400, nil)
	r.call("POST", "/containers/uu/update", `{"NanoCpus":-1}`, 400, nil)
}

// The next daemon follows the main processes of containers, and knows their names and exit codes.
func TestNextDaemon(t *testing.T) {
	r := start(t)
	r.create("?name=done", `,"Cmd":["sh","-c","exit 3"]`)
	r.call("POST", "/containers/done/start", "", 204, nil)
	r.wait("done")
	id := r.create("?name=loop", `,"Cmd":["sh","-c","trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done"]`)
	r.call("POST", "/containers/loop/start", "", 204, nil)
	for !strings.Contains(r.call("GET", "/containers/loop/logs?stdout=1", "", 200, nil), "ready") {
		time.Sleep(10 * time.Millisecond)
	}
	r.Docker.Close()
	next, err := docker.New(r.Docker.Config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(next.Close)
	server := httptest.NewUnstartedServer(next)
	server.Start()
	t.Cleanup(server.Close)
	r.http.Transport = bearer{&http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", server.Listener.Addr().String())
	}}}
	if s := r.state("done"); s.Status != "exited" || s.ExitCode != 3 {
		t.Errorf("%+v", s)
	}
	if s := r.state("loop"); s.Status != "running" {
		t.Errorf("%+v", s)
	}
	r.call("POST", "/containers/loop/stop", "", 204, nil)
	if s := r.state(id); s.Status != "exited" || s.ExitCode != 7 {
		t.Errorf("stopped: %+v", s)
	}
}

// A power failure may damage the record of a container. The next daemon starts nevertheless.
func TestDamagedRecord(t *testing.T) {
	r := start(t)
	id := r.create("?name=box", "")
	var c struct{ ForkdSandbox string }
	r.call("GET", "/containers/"+id+"/json", "", 200, &c)
	r.Docker.Close()
	if err := os.WriteFile(filepath.Join(r.Docker.Dir, c.ForkdSandbox+".json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	next, err := docker.New(r.Docker.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	req := httptest.NewRequest("GET", "/containers/"+id+"/json", nil)
	req.Header.Set("Authorization", "Bearer "+apirig.Token)
	w := httptest.NewRecorder()
	next.ServeHTTP(w, req)
	var i struct{ State state }
	if err := json.Unmarshal(w.Body.Bytes(), &i); err != nil || i.State.Status != "exited" || i.State.ExitCode != 255 ||
		i.State.Error == "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
