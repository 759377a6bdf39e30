package docker_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/proto/vm"
)

// If a container removes itself when it ends, a restart stops the container but does not remove it.
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

// awaitFile waits until a file exists.
func awaitFile(t *testing.T, file string) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			return
		}
		if time.Since(begun) > limit {
			t.Fatalf("nothing makes the file %s", file)
		}
	}
}

// A restart continues if the client leaves. If it ended halfway, a container that removes itself
// would be removed with its data.
func TestRestartWhenTheClientLeaves(t *testing.T) {
	r := start(t)
	dir := t.TempDir()
	script := "cd " + dir + "; trap 'touch asked; until [ -e go ]; do sleep 0.01; done; exit 0' TERM; " +
		"touch ready; while :; do sleep 0.01; done"
	id := r.create("?name=job", fmt.Sprintf(`,"HostConfig":{"AutoRemove":true},"Cmd":["sh","-c",%q]`, script))
	r.call("POST", "/containers/job/start", "", 204, nil)
	awaitFile(t, filepath.Join(dir, "ready"))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, "POST", "http://docker/v1.44/containers/job/restart?t=600", nil)
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan error)
	go func() {
		_, err := r.http.Do(req)
		left <- err
	}()
	awaitFile(t, filepath.Join(dir, "asked"))
	leave()
	if err := <-left; err == nil {
		t.Fatal("the restart has ended before the client left")
	}
	if err := os.Remove(filepath.Join(dir, "ready")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	awaitFile(t, filepath.Join(dir, "ready")) // the second run has made the file
	if s := r.state(id); s.Status != "running" {
		t.Errorf("%+v", s)
	}
	r.call("POST", "/containers/job/stop", "", 204, nil)
	r.call("GET", "/containers/job/json", "", 404, nil)
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

// After the machine of a container has ended, the output of the container is in a file.
func TestOutputOfAnEndedMachine(t *testing.T) {
	r := start(t)
	r.create("?name=job", `,"Cmd":["sh","-c","echo out; sleep 600"]`)
	_, stream, _ := r.hijack("/containers/job/attach?stream=1&stdout=1", "")
	r.call("POST", "/containers/job/start", "", 204, nil)
	if _, err := stream.ReadByte(); err != nil { // the output has arrived
		t.Fatal(err)
	}
	for _, v := range r.VMs.All() {
		v.End(vm.Exit{Detail: "killed"})
	}
	awaitFile(t, filepath.Join(r.Docker.Dir, r.sandboxOf("job")+".log"))
	_, text := r.send("GET", "/containers/job/logs?stdout=1", "")
	if stdout, _ := frames(t, []byte(text)); stdout != "out\n" {
		t.Errorf("%q", stdout)
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
	awaitFile(t, file)
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

// The end of the main process is reported even if execs of the container must still be killed and
// the guest does not answer.
func TestSilentGuest(t *testing.T) {
	var silent atomic.Bool
	answers := make(chan struct{})
	r := startWith(t, apirig.Options{Dial: func(context.Context) error {
		if silent.Load() {
			<-answers
		}
		return nil
	}})
	t.Cleanup(func() { close(answers) })
	ends := filepath.Join(t.TempDir(), "ends")
	r.create("?name=job", fmt.Sprintf(`,"Cmd":["sh","-c","until [ -e %s ]; do sleep 0.01; done; exit 3"]`, ends))
	r.call("POST", "/containers/job/start", "", 204, nil)
	e := r.exec("job", `{"Cmd":["sleep","600"]}`)
	r.call("POST", "/exec/"+e+"/start", `{"Detach":true}`, 200, nil)
	silent.Store(true)
	if err := os.WriteFile(ends, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.http.Timeout = limit // the wait must not need the guest
	if code := r.wait("job"); code != 3 {
		t.Errorf("exit code %d", code)
	}
}

// Whichever name of a container requests use, they share the places of the container's sandbox.
func TestNamesShareTheLimitOfASandbox(t *testing.T) {
	r := startWith(t, apirig.Options{Limits: face.Limits{PerSandbox: 1}})
	id := r.create("?name=job", `,"Cmd":["sh","-c","trap '' TERM; echo ready; while :; do sleep 0.05; done"]`)
	sandbox := r.sandboxOf(id)
	r.call("POST", "/containers/job/start", "", 204, nil)
	_, in, resp := r.hijack("/containers/job/attach?logs=1&stream=1&stdout=1", "")
	if resp.StatusCode != 101 {
		t.Fatal(resp.Status)
	}
	if _, err := in.ReadString('y'); err != nil { // the end of "ready", after which the process ignores SIGTERM
		t.Fatal(err)
	}
	r.http.Transport = holder{r.http.Transport, apirig.Token} // the operator has reserved places
	names := []string{"job", id, id[:12], id[:13], sandbox}
	for _, name := range names {
		r.call("GET", "/containers/"+name+"/archive?path=/etc/hostname", "", 503, nil)
	}
	stopped := make(chan bool)
	go func() {
		defer close(stopped)
		for status := 503; status == 503; { // an update may have the place at this moment
			resp, err := r.http.Post("http://docker/v1.44/containers/job/stop?t=600", "", nil)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			status = resp.StatusCode
		}
	}()
	for begun := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		resp, _ := r.send("POST", "/containers/job/update", "{}")
		if resp.StatusCode == 503 {
			break
		}
		if time.Since(begun) > limit {
			t.Fatal("the stop takes no place")
		}
	}
	for _, name := range names {
		r.call("POST", "/containers/"+name+"/update", "{}", 503, nil)
		r.call("POST", "/commit?container="+name, "{}", 503, nil)
	}
	r.call("POST", "/containers/job/kill", "", 204, nil)
	<-stopped
}

// Clients that wait for containers take no places that are meant for clients that follow events.
func TestWaitsAreNotFollowers(t *testing.T) {
	r := startWith(t, apirig.Options{Limits: face.Limits{Followers: 1}})
	id := r.create("", `,"Cmd":["sleep","600"]`)
	for n := range 3 {
		if _, _, resp := r.hijack("/containers/"+id+"/wait?condition=next-exit", ""); resp.StatusCode != 200 {
			t.Errorf("wait %d: %s", n, resp.Status)
		}
	}
	if _, _, resp := r.hijack("/containers/"+id+"/wait", ""); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
	resp, err := r.http.Get("http://docker/v1.44/events")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("events: %s", resp.Status)
	}
}

// If the host has chosen a port, the next daemon opens the same port. If that port is taken, the
// host chooses another port.
func TestChosenPortOfTheNextDaemon(t *testing.T) {
	r := start(t)
	r.create("?name=web", `,"Cmd":["sleep","600"],"HostConfig":{"PortBindings":{"80/tcp":[{}]}}`)
	port := func() string {
		t.Helper()
		var c struct {
			NetworkSettings struct {
				Ports map[string][]struct{ HostPort string }
			}
		}
		r.call("GET", "/containers/web/json", "", 200, &c)
		if len(c.NetworkSettings.Ports["80/tcp"]) != 1 {
			t.Fatalf("%+v", c)
		}
		return c.NetworkSettings.Ports["80/tcp"][0].HostPort
	}
	r.call("POST", "/containers/web/start", "", 204, nil)
	first := port()
	d := r.next()
	if got := port(); got != first {
		t.Errorf("the next daemon has port %s, want %s", got, first)
	}
	d.Close()
	l, err := net.Listen("tcp", "127.0.0.1:"+first)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r.next()
	if got := port(); got == first {
		t.Error("the port of another program is published")
	}
	r.call("POST", "/containers/web/kill", "", 204, nil)
}

// If a process is just being started, a kill waits until the process runs.
func TestKillWhileACommandStarts(t *testing.T) {
	var slow atomic.Bool
	begins, goOn := make(chan struct{}, 100), make(chan struct{})
	r := startWith(t, apirig.Options{Limits: face.Limits{PerSandbox: 1}, Dial: func(context.Context) error {
		if slow.Load() {
			begins <- struct{}{}
			<-goOn
		}
		return nil
	}})
	r.create("?name=job", `,"Cmd":["sleep","600"]`)
	r.http.Transport = holder{r.http.Transport, apirig.Token}
	slow.Store(true)
	var posts sync.WaitGroup
	post := func(path string) {
		for {
			resp, err := r.http.Post("http://docker/v1.44/containers/job/"+path, "", nil)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			if resp.StatusCode == 503 { // a resize has the place
				continue
			}
			if resp.StatusCode != 204 {
				t.Errorf("%s: %s", path, resp.Status)
			}
			return
		}
	}
	posts.Go(func() { post("start") })
	<-begins
	posts.Go(func() { post("kill") })
	for begun := time.Now(); ; time.Sleep(time.Millisecond) { // until the kill has the only place of its kind
		if resp, _ := r.send("POST", "/containers/job/resize?h=1&w=1", ""); resp.StatusCode == 503 {
			break
		}
		if time.Since(begun) > limit {
			t.Error("the kill does not wait")
			break
		}
	}
	slow.Store(false)
	close(goOn)
	posts.Wait()
	if s := r.state("job"); s.Status != "exited" || s.ExitCode != 128+9 {
		t.Errorf("%+v", s)
	}
}
