package e2b_test

import (
	"net/http"
	"net/http/httptrace"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
)

// A request resumes a sandbox that has auto-resume, and gives it a new timeout.
func TestAutoResume(t *testing.T) {
	r := start(t)
	b := r.create(`{"templateID":"a.b","autoPause":true,"autoResume":{"enabled":true}}`)
	r.call("POST", "/sandboxes/"+b.ID+"/pause", "", 204, nil)
	if resp, out := r.send("GET", "/health", b.header(), ""); resp.StatusCode != 204 {
		t.Fatalf("%s %s", resp.Status, out)
	}
	var i struct {
		State     string
		EndAt     time.Time
		Lifecycle struct{ OnTimeout string }
	}
	if r.call("GET", "/sandboxes/"+b.ID, "", 200, &i); i.State != "running" || i.EndAt.Year() > 9000 ||
		i.Lifecycle.OnTimeout != "pause" {
		t.Errorf("%+v", i)
	}
}

// A request during the resumption of its sandbox waits for the end of the resumption.
//
// +checklocksignore: it unlocks by a function value
func TestAutoResumeOfTwo(t *testing.T) {
	r := start(t)
	b := r.create(`{"templateID":"a.b","autoPause":true,"autoResume":{"enabled":true}}`)
	r.call("POST", "/sandboxes/"+b.ID+"/pause", "", 204, nil)
	r.VMs.Mu.Lock() // no VM can start until Unlock
	restore := sync.OnceFunc(r.VMs.Mu.Unlock)
	defer restore()
	answers := make(chan int)
	ask := func() {
		resp, _ := r.send("GET", "/health", b.header(), "")
		answers <- resp.StatusCode
	}
	go ask()
	state := func() string {
		s, err := r.Sandbox(t.Context(), b.ID)
		if err != nil {
			t.Fatal(err)
		}
		return s.State
	}
	for state() != "restoring" {
	}
	go ask()
	for range 20 { // give the first request time to arrive
		state()
	}
	restore()
	for range 2 {
		if status := <-answers; status != 204 {
			t.Errorf("status %d", status)
		}
	}
}

// A request during a pause waits for the end of the pause and then resumes the sandbox. A sandbox
// that was paused by /v1 is not resumed by a request.
//
// +checklocksignore: it unlocks by a function value
func TestAutoResumeAmidAPause(t *testing.T) {
	r := start(t)
	b := r.create(`{"templateID":"a.b","autoPause":true,"autoResume":{"enabled":true}}`)
	r.VMs.Mu.Lock() // the VM cannot be saved until Unlock
	save := sync.OnceFunc(r.VMs.Mu.Unlock)
	defer save()
	paused := make(chan int)
	go func() {
		resp, _ := r.send("POST", "/sandboxes/"+b.ID+"/pause", apiKey, "")
		paused <- resp.StatusCode
	}()
	for i := (box{}); i.State != "paused"; {
		r.call("GET", "/sandboxes/"+b.ID, "", 200, &i)
	}
	trace := &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { save() }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "GET", r.URL+"/health", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range b.header() {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 204 {
		t.Errorf("amid the pause: %s", resp.Status)
	}
	if status := <-paused; status != 204 {
		t.Errorf("pause: %d", status)
	}
	operator := header{"Authorization": "Bearer " + apirig.Token}
	if resp, out := r.send("POST", "/v1/sandboxes/"+b.ID+"/pause", operator, ""); resp.StatusCode != 200 {
		t.Fatalf("%s %s", resp.Status, out)
	}
	if resp, out := r.send("GET", "/health", b.header(), ""); resp.StatusCode != 502 {
		t.Errorf("paused by /v1: %s %s", resp.Status, out)
	}
}

// A health check without a token does not resume a paused sandbox.
func TestHealthWakesNothing(t *testing.T) {
	r := start(t)
	b := r.create(`{"templateID":"a.b","autoPause":true,"autoResume":{"enabled":true}}`)
	r.call("POST", "/sandboxes/"+b.ID+"/pause", "", 204, nil)
	if resp, out := r.send("GET", "/health", header{"E2b-Sandbox-Id": b.ID}, ""); resp.StatusCode != 502 {
		t.Errorf("%s %s", resp.Status, out)
	}
	var i struct{ State string }
	if r.call("GET", "/sandboxes/"+b.ID, "", 200, &i); i.State != "paused" {
		t.Errorf("it is %s", i.State)
	}
}

// The sandbox of a workspace has no end, and E2B's API cannot set one.
func TestTimeoutOfAWorkspace(t *testing.T) {
	r := start(t)
	ws, err := r.CreateWorkspace(t.Context(), client.WorkspaceRequest{Name: "desk", SnapshotTag: "a.b"})
	if err != nil {
		t.Fatal(err)
	}
	path := "/sandboxes/" + ws.LiveSandboxID
	r.call("POST", path+"/timeout", `{"timeout":1}`, 409, nil)
	r.call("POST", path+"/connect", `{"timeout":1}`, 200, nil)
	if s, err := r.Sandbox(t.Context(), ws.LiveSandboxID); err != nil || s.ExpiresAt != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}
