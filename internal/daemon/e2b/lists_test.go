package e2b_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/face"
)

// stuckWriter is a client that receives nothing.
type stuckWriter struct {
	http.ResponseWriter
	begun chan bool
	end   chan bool
}

func (w stuckWriter) Write(p []byte) (int, error) {
	w.begun <- true
	<-w.end
	return len(p), nil
}

// A list is in memory until the client has received it, so the number of concurrent lists is
// limited. E2B's API and /v1 share the limit.
func TestListsAreLimited(t *testing.T) {
	r := startWith(t, apirig.Options{Limits: face.Limits{Lists: 2}})
	bearer := header{"Authorization": "Bearer " + apirig.Token}
	lists := []string{"/v1/sandboxes", "/v1/snapshots", "/v1/workspaces", "/sandboxes", "/v2/sandboxes", "/snapshots",
		"/templates", "/v2/templates"}
	for _, path := range lists {
		stuck := stuckWriter{httptest.NewRecorder(), make(chan bool, 1), make(chan bool)}
		done := make(chan bool)
		go func() {
			req := httptest.NewRequest("GET", path, nil)
			req.Header.Set("Authorization", "Bearer "+apirig.Token)
			r.Server.Config.Handler.ServeHTTP(stuck, req)
			close(done)
		}()
		<-stuck.begun
		for _, other := range lists {
			if resp, out := r.send("GET", other, bearer, ""); resp.StatusCode != http.StatusServiceUnavailable ||
				resp.Header.Get("Retry-After") == "" {
				t.Errorf("%s during %s: %s %s", other, path, resp.Status, out)
			}
		}
		if resp, out := r.send("DELETE", "/sandboxes/sb-x", bearer, ""); resp.StatusCode != http.StatusNotFound {
			t.Errorf("an end during %s: %s %s", path, resp.Status, out)
		}
		close(stuck.end)
		<-done
		if resp, out := r.send("GET", path, bearer, ""); resp.StatusCode != http.StatusOK {
			t.Errorf("%s afterwards: %s %s", path, resp.Status, out)
		}
	}
}

// A pause that requires a healthy guest fails if the guest is silent.
func TestPauseOfASilentGuest(t *testing.T) {
	var silent atomic.Bool
	r := startWith(t, apirig.Options{Dial: func(context.Context) error {
		if silent.Load() {
			return errors.New("no answer")
		}
		return nil
	}})
	b := r.create(`{"templateID":"a.b"}`)
	silent.Store(true)
	r.call("POST", "/sandboxes/"+b.ID+"/pause", `{"requireHealthyGuest":true}`, 503, nil)
	var i struct{ State, PauseMode string }
	if r.call("GET", "/sandboxes/"+b.ID, "", 200, &i); i.State != "running" || i.PauseMode != "" {
		t.Errorf("%+v", i)
	}
	silent.Store(false)
	r.call("POST", "/sandboxes/"+b.ID+"/pause", `{"requireHealthyGuest":true}`, 204, nil)
	if r.call("GET", "/sandboxes/"+b.ID, "", 200, &i); i.State != "paused" || i.PauseMode != "full" {
		t.Errorf("%+v", i)
	}
}

// partsWriter records the length of the longest write.
type partsWriter struct {
	*httptest.ResponseRecorder
	longest int
}

func (w *partsWriter) Write(p []byte) (int, error) {
	w.longest = max(w.longest, len(p))
	return w.ResponseRecorder.Write(p)
}

// A list is written in parts. Each sandbox may have 64 KiB of metadata, so whole lists of all
// concurrent requests would exceed the daemon's memory.
func TestListsAreWrittenInParts(t *testing.T) {
	const sandboxes, metadata = 8, 60 << 10
	r := start(t)
	for range sandboxes {
		r.create(`{"templateID":"a.b","metadata":{"note":"` + strings.Repeat("x", metadata) + `"}}`)
	}
	for _, path := range []string{"/sandboxes", "/v2/sandboxes"} {
		w := &partsWriter{ResponseRecorder: httptest.NewRecorder()}
		req := httptest.NewRequest("GET", path, nil)
		req.Header.Set("Authorization", "Bearer "+apirig.Token)
		r.Server.Config.Handler.ServeHTTP(w, req)
		var list []struct{ Metadata map[string]string }
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || len(list) != sandboxes ||
			len(list[0].Metadata["note"]) != metadata {
			t.Fatalf("%s: %d of them, %v", path, len(list), err)
		}
		if w.longest > 2*metadata {
			t.Errorf("%s: %d bytes are held and written at once, want at most those of one sandbox and a part", path, w.longest)
		}
	}
}

// Bodies of E2B's API count against the shared memory limit with their decoded size, which can be
// twenty times the size of the JSON.
func TestBodiesShareTheMemory(t *testing.T) {
	r := startWith(t, apirig.Options{Limits: face.Limits{Memory: 1 << 20}})
	many := strings.Repeat(`{},`, 50_000) + `{}`
	for path, body := range map[string]string{
		"/v2/sandboxes": `{"templateID":"a.b","volumeMounts":[` + many + `]}`,
		"/v3/templates": `{"name":"x","tags":[` + strings.ReplaceAll(many, "{}", `""`) + `]}`,
	} {
		r.call("POST", path, body, http.StatusServiceUnavailable, nil)
	}
	r.create(`{"templateID":"a.b","metadata":{"note":"` + strings.Repeat("x", 10<<10) + `"}}`)
}

// A large answer counts against the shared memory until its client has received it, with and
// without an Idempotency-Key.
func TestAnswersShareTheMemory(t *testing.T) {
	r := startWith(t, apirig.Options{Limits: face.Limits{Memory: 1 << 20}})
	b := r.create(`{"templateID":"a.b"}`)
	for _, v := range r.VMs.All() {
		v.Print(strings.Repeat(strings.Repeat("x", 59)+"\n", 1000))
	}
	// Each answer has more than 200 KiB. The first 64 KiB of an answer do not count. The client's
	// share is three quarters of the memory, so fewer than eight answers fill the share.
	const most = 8
	for n := 0; ; n++ {
		answer := httptest.NewRecorder()
		stuck := stuckWriter{answer, make(chan bool, 1), make(chan bool)}
		done := make(chan bool)
		go func() {
			req := httptest.NewRequest("GET", "/sandboxes/"+b.ID+"/logs", nil)
			req.Header.Set("Authorization", "Bearer "+apirig.Token)
			r.Server.Config.Handler.ServeHTTP(stuck, req)
			close(done)
		}()
		defer func() { <-done }()
		defer close(stuck.end)
		<-stuck.begun
		if answer.Code == http.StatusServiceUnavailable && n > 1 {
			return
		}
		if answer.Code != http.StatusOK || n > most {
			t.Fatalf("answer %d that no client receives has status %d", n, answer.Code)
		}
	}
}

// Clients choose metadata. Whatever they choose, a sandbox does not look like a sandbox of a build.
// Lists omit the sandboxes of builds, and the next daemon deletes them.
func TestMetadataMakesNoBuild(t *testing.T) {
	r := start(t)
	for _, metadata := range []string{`{"build":"x"}`, `{"Build":"x"}`, `{"x\",\"build":"x"}`} {
		b := r.create(`{"templateID":"a.b","metadata":` + metadata + `,"build":"x"}`)
		var i struct{ State string }
		if r.call("GET", "/sandboxes/"+b.ID, "", 200, &i); i.State != "running" {
			t.Errorf("with metadata %s it is %q", metadata, i.State)
		}
	}
}
