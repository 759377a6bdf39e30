package v1_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/guest/agent"
)

const token = apirig.Token

func TestMain(m *testing.M) { apirig.Main(m, agent.Main) }

// start starts the API with sandboxes that are processes of this host.
func start(t *testing.T, o apirig.Options) *apirig.Rig {
	t.Helper()
	o.Agent = apirig.SelfAgent
	return apirig.Start(t, o)
}

// serve starts the API. It returns a client, the URL of the API, the path of the audit log, and a
// request for a snapshot.
func serve(t *testing.T) (cl *client.Client, url, auditLog string, parent client.BakeRequest) {
	t.Helper()
	r := start(t, apirig.Options{})
	return r.Client, r.URL, r.AuditLog, r.Parent
}

func TestClientAndDaemonAgree(t *testing.T) {
	cl, _, _, bake := serve(t)
	ctx := context.Background()
	if b, err := cl.Bake(ctx, bake); err != nil || b.Tag != "a.b" || b.Status != "ready" || !b.Bootable ||
		b.MemSizeMiB != 512 {
		t.Fatalf("bake: %+v, %v", b, err)
	}
	if list, err := cl.Snapshots(ctx); err != nil || len(list) != 1 || list[0].BaseImage != bake.Rootfs {
		t.Errorf("snapshots: %+v, %v", list, err)
	}
	if _, err := cl.Bake(ctx, bake); !client.IsStatus(err, http.StatusConflict) {
		t.Errorf("second bake: %v", err)
	}
	f, err := cl.Fork(ctx, client.ForkRequest{SnapshotTag: "a.b", N: 3, TTLSecs: 3600})
	if err != nil || len(f.Sandboxes) != 3 || f.ForkWallMS < f.VMMWallMS || f.ForkWallMS == 0 {
		t.Fatalf("fork: %+v, %v", f, err)
	}
	s := f.Sandboxes[0]
	if s.State != "running" || s.ReadyMS == nil || s.PID == 0 || s.ExpiresAt == 0 {
		t.Errorf("sandbox %+v", s)
	}
	if m, err := cl.SetTTL(ctx, s.ID, 7200); err != nil || m.ExpiresAt < s.ExpiresAt+3000 {
		t.Errorf("more time: %+v, %v", m, err)
	}
	if m, err := cl.SetTTL(ctx, s.ID, 0); err != nil || m.ExpiresAt != 0 {
		t.Errorf("no end: %+v, %v", m, err)
	}
	if _, err := cl.SetTTL(ctx, s.ID, 367*24*3600); !client.IsStatus(err, http.StatusBadRequest) {
		t.Errorf("more than a year: %v", err)
	}
	if list, err := cl.Sandboxes(ctx); err != nil || len(list) != 3 {
		t.Errorf("list: %d, %v", len(list), err)
	}
	useSandbox(t, cl, s.ID)
	if err := cl.DeleteSnapshot(ctx, "a.b", client.DeleteOptions{}); !client.IsStatus(err, http.StatusConflict) ||
		!strings.Contains(err.Error(), s.ID) {
		t.Errorf("delete of a snapshot in use: %v", err)
	}
	for _, s := range f.Sandboxes {
		if err := cl.Kill(ctx, s.ID); err != nil {
			t.Errorf("kill: %v", err)
		}
	}
	if err := cl.Kill(ctx, s.ID); !client.IsNotFound(err) {
		t.Errorf("kill twice: %v", err)
	}
	if err := cl.VerifySnapshot(ctx, "a.b"); err != nil {
		t.Errorf("verify: %v", err)
	}
	if d, err := cl.Snapshot(ctx, "a.b"); err != nil || d.ID == "" || d.Dependents == nil {
		t.Errorf("info: %+v, %v", d, err)
	}
	if err := cl.DeleteSnapshot(ctx, "a.b", client.DeleteOptions{Cascade: true}); err != nil {
		t.Errorf("delete: %v", err)
	}
}

// useSandbox calls every method of the client that uses a sandbox, once.
func useSandbox(t *testing.T, cl *client.Client, id string) {
	t.Helper()
	ctx := context.Background()
	if p, err := cl.Ping(ctx, id); err != nil || !p.Pong {
		t.Errorf("ping: %+v, %v", p, err)
	}
	if r, err := cl.Exec(ctx, id, client.ExecRequest{Args: []string{"sh", "-c", "echo -n out; exit 3"}}); err != nil ||
		r.ExitCode != 3 || r.Stdout != "out" || r.Error != "" {
		t.Errorf("exec: %+v, %v", r, err)
	}
	if r, err := cl.Exec(ctx, id, client.ExecRequest{Args: []string{"no-such-command"}}); err != nil ||
		r.ExitCode != 127 || r.Outcome != "not_found" || r.Error == "" {
		t.Errorf("exec of a missing command: %+v, %v", r, err)
	}
	if r, err := cl.Exec(ctx, id, client.ExecRequest{Args: []string{"sleep", "60"}, TimeoutSecs: 0.1}); err != nil ||
		!r.TimedOut || r.ExitCode != 124 {
		t.Errorf("exec that times out: %+v, %v", r, err)
	}
	if r, err := cl.Eval(ctx, id, client.EvalRequest{Code: "1+1"}); err != nil || r.Result == nil || *r.Result != "2" {
		t.Errorf("eval: %+v, %v", r, err)
	}
	if r, err := cl.Eval(ctx, id, client.EvalRequest{Code: "1/0"}); err != nil || r.ExitCode != 1 ||
		!strings.Contains(r.Traceback, "ZeroDivisionError") || r.Result != nil {
		t.Errorf("eval with an exception: %+v, %v", r, err)
	}
	ram, err := unix.Mmap(-1, 0, 512<<20, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil { // this process stands in for the VMM, so it maps the guest's RAM
		t.Fatal(err)
	}
	defer unix.Munmap(ram)
	if st, err := cl.Stats(ctx, id); err != nil || st.GuestDirty != 8 || st.VMMPrivate == 0 || st.PSS < st.VMMPrivate {
		t.Errorf("stats: %+v, %v", st, err)
	}
	whole, err := cl.Console(ctx, id)
	if err != nil || !strings.Contains(string(whole), "Kernel panic") {
		t.Errorf("console: %q, %v", whole, err)
	}
	file := filepath.Join(t.TempDir(), "file") // the faked guest uses the host's file system
	if err := cl.WriteFile(ctx, id, file, strings.NewReader("content")); err != nil {
		t.Errorf("write file: %v", err)
	}
	if r, err := cl.ReadFile(ctx, id, file); err != nil {
		t.Errorf("read file: %v", err)
	} else if p, err := io.ReadAll(r); err != nil || string(p) != "content" {
		t.Errorf("read file: %q, %v", p, err)
	}
}

// Status codes and error bodies are as documented.
func TestStatusCodes(t *testing.T) {
	_, url, id := forked(t)
	box := "/v1/sandboxes/" + id
	for _, c := range []struct {
		method, path, body string
		status             int
		message            string
	}{
		{"GET", "/v1/snapshots/none/info", "", 404, "none"},
		{"GET", "/v1/snapshots/-x/info", "", 400, "tag"},
		{"DELETE", "/v1/snapshots/a.b?cascade=true&force=true", "", 400, "exclude"},
		{"DELETE", "/v1/snapshots/a.b?force=maybe", "", 400, "force"},
		{"DELETE", "/v1/snapshots/none", "", 404, "none"},
		{"POST", "/v1/snapshots", `{"tag":"x","kernel":"/k","colour":1}`, 400, "colour: "},
		{"POST", "/v1/snapshots", `{"tag":"x","tap":"tap0"}`, 400, "tap"},
		{"POST", "/v1/snapshots", `{"tag":"x","boot_wait_secs":61}`, 400, "boot_wait_secs"},
		{"POST", "/v1/snapshots", `{"tag":"x"}`, 400, "kernel"},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"a.b","n":0}`, 400, "n: 0"},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"a.b","n":1001}`, 400, "1000"},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"a.b","n":"2"}`, 400, "n: "},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"a.b"} x`, 400, "follows"},
		{"POST", "/v1/sandboxes", `{"snapshot_tag`, 400, "body"},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"` + strings.Repeat("x", 3<<20) + `"}`, 413, "too large"},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"none"}`, 404, "none"},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"../x"}`, 400, "snapshot_tag"},
		{"GET", "/v1/sandboxes/sb-none", "", 404, "sb-none"},
		{"POST", box + "/exec", `{"args":[]}`, 400, "args"},
		{"POST", box + "/exec", `{"args":["x"],"timeout_secs":1e9}`, 400, "timeout_secs"},
		{"POST", box + "/exec", `{"args":["true"],"env":{"":"x"}}`, 400, "env"},
		{"POST", box + "/exec", `{"args":["true"],"env":{"A=B":"x"}}`, 400, "A=B"},
		{"POST", box + "/exec", `{"args":["true"],"env":{"A":"x\u0000"}}`, 400, "NUL"},
		{"POST", box + "/exec", `{"args":["a\u0000b"]}`, 400, "args[0]"},
		{"POST", box + "/exec", `{"args":["true"],"cwd":"\u0000"}`, 400, "cwd"},
		{"POST", box + "/exec", `{"args":["true"],"user":"no-such-user"}`, 400, "no-such-user"},
		{"GET", box + "/files", "", 400, "path"},
		{"GET", box + "/files?path=/none", "", 404, "no such file"},
		{"PATCH", "/v1/sandboxes", "", 405, "not allowed"},
		{"GET", "/v2/x", "", 404, "no such route"},
	} {
		req, err := http.NewRequest(c.method, url+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var body apiv1.Error
		err = json.NewDecoder(resp.Body).Decode(&body)
		resp.Body.Close()
		if resp.StatusCode != c.status || err != nil || !strings.Contains(body.Message, c.message) {
			t.Errorf("%s %s %.60s: %d %v (%v), want %d with %q", c.method, c.path, c.body, resp.StatusCode, body, err, c.status,
				c.message)
		}
	}
}

func TestTokenAndAudit(t *testing.T) {
	_, url, auditLog, _ := serve(t)
	for path, want := range map[string]int{"/healthz": 200, "/healthz/": 200, "/version": 401, "/metrics": 401,
		"/v1/sandboxes": 401} {
		resp, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s without a token: %d, want %d", path, resp.StatusCode, want)
		}
	}
	for range 1000 { // the audit line may be written after the client has received the answer
		p, err := os.ReadFile(auditLog)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(string(p), "\n") == 5 {
			if !strings.Contains(string(p), `"status":401`) || strings.Contains(string(p), token) {
				t.Errorf("audit log:\n%s", p)
			}
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("the audit log does not have a line per request")
}
