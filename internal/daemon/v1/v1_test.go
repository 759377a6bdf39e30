package v1_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/agentclient"
	"github.com/forkd/forkd/internal/agentproto"
	"github.com/forkd/forkd/internal/audit"
	"github.com/forkd/forkd/internal/auth"
	v1 "github.com/forkd/forkd/internal/daemon/v1"
	"github.com/forkd/forkd/internal/memlayer"
	"github.com/forkd/forkd/internal/metrics"
	"github.com/forkd/forkd/internal/sandbox"
	"github.com/forkd/forkd/internal/store"
	"github.com/forkd/forkd/internal/vmm/vmmclient"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// vms are VMs that do nothing: the API is tested over a real manager and store, VMs are tested in the machine.
type vms struct{}

type vm struct {
	dir   string
	conns chan vmmclient.Conn
	done  chan struct{}
}

func (vms) Spawn(_ context.Context, c sandbox.ShellConfig) (sandbox.VMM, error) {
	return &vm{c.Dir, make(chan vmmclient.Conn, 1), make(chan struct{})}, os.Mkdir(c.Dir, 0o700)
}
func (vms) Attach(string, string) (sandbox.VMM, error) { return nil, errors.New("none") }
func (vms) Console(string) ([]byte, error)             { return []byte("hello from ttyS0\n"), nil }

func (v *vm) PID() int { return os.Getpid() }
func (v *vm) Boot(context.Context, vmmproto.Boot, vmmclient.BootFiles) error {
	ours, theirs := net.Pipe()
	go func() {
		json.NewEncoder(theirs).Encode(agentproto.Ready{Version: agentproto.Version, Warm: []string{"python"}})
		theirs.Close()
	}()
	v.conns <- vmmclient.Conn{Port: agentproto.ReadyPort, Conn: ours}
	return nil
}
func (v *vm) Restore(context.Context, vmmproto.Restore, vmmclient.RestoreFiles) (r vmmproto.RestoreResult, err error) {
	return r, nil
}
func (v *vm) Resume(context.Context) error { return nil }
func (v *vm) Pause(context.Context) error  { return nil }
func (v *vm) Save(_ context.Context, _ vmmproto.Save, f vmmclient.SaveFiles) (vmmproto.SaveResult, error) {
	_, err := f.Layer.Write(make([]byte, memlayer.PageSize))
	return vmmproto.SaveResult{Extents: []memlayer.Extent{{Length: memlayer.PageSize}}}, err
}
func (v *vm) Stats(context.Context) (vmmproto.Stats, error) {
	return vmmproto.Stats{GuestDirtyBytes: 8192}, nil
}
func (v *vm) Conns() <-chan vmmclient.Conn { return v.conns }
func (v *vm) Done() <-chan struct{}        { return v.done }
func (v *vm) Exit() vmmproto.Exit          { return vmmproto.Exit{Reason: vmmproto.ExitInternal} }
func (v *vm) Kill() error {
	select {
	case <-v.done:
	default:
		close(v.done)
	}
	return os.RemoveAll(v.dir)
}

type guest struct{}

func (guest) Ping(context.Context) (agentproto.Ready, error) {
	return agentproto.Ready{Warm: []string{"python"}}, nil
}
func (guest) Forked(context.Context, agentproto.Forked) error { return nil }
func (guest) Sync(context.Context) error                      { return nil }
func (guest) Exec(_ context.Context, r agentclient.ExecRequest) (agentclient.ExecResult, error) {
	switch r.Args[0] {
	case "missing":
		return agentclient.ExecResult{Outcome: agentclient.NotFound, ExitCode: -1, Status: "no such file"}, nil
	case "slow":
		return agentclient.ExecResult{Outcome: agentclient.TimedOut, ExitCode: -1}, nil
	case "baduser":
		return agentclient.ExecResult{}, &agentclient.Error{Op: "exec", Code: agentclient.CodeInvalid, Message: "no such user"}
	}
	return agentclient.ExecResult{Outcome: agentclient.Exited, ExitCode: 3, Stdout: []byte("out"), Stderr: []byte("err")}, nil
}
func (guest) Eval(_ context.Context, code string, _ agentclient.EvalOptions) (agentclient.EvalResult, error) {
	if code == "1/0" {
		return agentclient.EvalResult{Error: &agentclient.EvalError{Name: "ZeroDivisionError", Value: "v", Traceback: "tb"}}, nil
	}
	result := "2"
	return agentclient.EvalResult{Result: &result}, nil
}
func (guest) ReadFile(_ context.Context, path, _ string) (io.ReadCloser, error) {
	if path != "/a" {
		return nil, &agentclient.Error{Op: "read file " + path, Code: agentclient.CodeNotFound, Message: "no such file"}
	}
	return io.NopCloser(strings.NewReader("content")), nil
}
func (guest) WriteFile(_ context.Context, _, _ string, r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

const token = "0123456789abcdef"

// serve starts the API and returns a client of it, its URL, the path of its audit log and a request for a snapshot.
func serve(t *testing.T) (cl *client.Client, url, auditLog string, bake client.BakeRequest) {
	t.Helper()
	dir := t.TempDir()
	st, err := store.Open(store.Config{Root: filepath.Join(dir, "state"), RAM: filepath.Join(dir, "ram")})
	if err != nil {
		t.Fatal(err)
	}
	counts := metrics.New("test")
	m, err := sandbox.New(sandbox.Config{
		Store: st, VMMs: vms{}, Guest: func(string) sandbox.Guest { return guest{} },
		NewTop: func(*os.File, uint64) error { return nil },
		RunDir: filepath.Join(dir, "run"), DataDir: filepath.Join(dir, "data"), Template: "host", Accel: "kvm",
		Observer: counts, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	counts.SetSource(metrics.Source{Snapshots: func() int { return len(st.List()) }, Pool: m.PoolSize,
		Sandboxes: func() map[string]int { return nil }})
	secret, err := auth.Parse(token)
	if err != nil {
		t.Fatal(err)
	}
	auditLog = filepath.Join(dir, "audit.log")
	log, err := audit.Open(auditLog)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(v1.New(v1.Config{Manager: m, Metrics: counts.Handler(), Token: secret, Audit: log,
		Version: "test", Accel: "kvm", Log: slog.New(slog.DiscardHandler)}))
	t.Cleanup(func() { srv.Close(); m.Close(true); st.Close(); log.Close() })
	if cl, err = client.New(srv.URL, token); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	return cl, srv.URL, auditLog, client.BakeRequest{Tag: "a.b", Kernel: file, Initrd: file, Rootfs: file}
}

func TestClientAndDaemonAgree(t *testing.T) {
	cl, _, _, bake := serve(t)
	ctx := context.Background()
	if b, err := cl.Bake(ctx, bake); err != nil || b.Tag != "a.b" || b.Status != "ready" || !b.Bootable || b.MemSizeMiB != 512 {
		t.Fatalf("bake: %+v, %v", b, err)
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
	if list, err := cl.Sandboxes(ctx); err != nil || len(list) != 3 {
		t.Errorf("list: %d, %v", len(list), err)
	}
	useSandbox(t, cl, s.ID)
	if err := cl.DeleteSnapshot(ctx, "a.b", client.DeleteOptions{}); !client.IsStatus(err, http.StatusConflict) {
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

// useSandbox makes every call on a sandbox once.
func useSandbox(t *testing.T, cl *client.Client, id string) {
	t.Helper()
	ctx := context.Background()
	if p, err := cl.Ping(ctx, id); err != nil || !p.Pong {
		t.Errorf("ping: %+v, %v", p, err)
	}
	if r, err := cl.Exec(ctx, id, client.ExecRequest{Args: []string{"x"}}); err != nil || r.ExitCode != 3 || r.Stdout != "out" || r.Error != "" {
		t.Errorf("exec: %+v, %v", r, err)
	}
	if r, err := cl.Exec(ctx, id, client.ExecRequest{Args: []string{"missing"}}); err != nil || r.ExitCode != 127 || r.Outcome != "not_found" || r.Error == "" {
		t.Errorf("exec of a missing command: %+v, %v", r, err)
	}
	if r, err := cl.Exec(ctx, id, client.ExecRequest{Args: []string{"slow"}}); err != nil || !r.TimedOut || r.ExitCode != 124 {
		t.Errorf("exec that times out: %+v, %v", r, err)
	}
	if r, err := cl.Eval(ctx, id, client.EvalRequest{Code: "1+1"}); err != nil || r.Result == nil || *r.Result != "2" {
		t.Errorf("eval: %+v, %v", r, err)
	}
	if r, err := cl.Eval(ctx, id, client.EvalRequest{Code: "1/0"}); err != nil || r.ExitCode != 1 || r.Traceback != "tb" || r.Result != nil {
		t.Errorf("eval with an exception: %+v, %v", r, err)
	}
	ram, err := unix.Mmap(-1, 0, 512<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil { // the VMM process is this one, and has RAM of its guest mapped
		t.Fatal(err)
	}
	defer unix.Munmap(ram)
	if st, err := cl.Stats(ctx, id); err != nil || st.GuestDirty != 8 || st.VMMPrivate == 0 || st.PSS < st.VMMPrivate {
		t.Errorf("stats: %+v, %v", st, err)
	}
	if p, err := cl.Console(ctx, id); err != nil || !strings.Contains(string(p), "ttyS0") {
		t.Errorf("console: %q, %v", p, err)
	}
	if err := cl.WriteFile(ctx, id, "/a", strings.NewReader("x")); err != nil {
		t.Errorf("write file: %v", err)
	}
	if r, err := cl.ReadFile(ctx, id, "/a"); err != nil {
		t.Errorf("read file: %v", err)
	} else if p, err := io.ReadAll(r); err != nil || string(p) != "content" {
		t.Errorf("read file: %q, %v", p, err)
	}
}

// Status codes and error bodies are those of the documented API.
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
		{"POST", "/v1/snapshots", `{"tag":"x","kernel":"/k","colour":1}`, 400, `"colour"`},
		{"POST", "/v1/snapshots", `{"tag":"x","tap":"tap0"}`, 400, "tap"},
		{"POST", "/v1/snapshots", `{"tag":"x","boot_wait_secs":61}`, 400, "boot_wait_secs"},
		{"POST", "/v1/snapshots", `{"tag":"x"}`, 400, "kernel"},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"a.b","n":0}`, 400, "n: 0"},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"a.b","n":1001}`, 400, "1000"},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"a.b","n":"2"}`, 400, `"n"`},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"a.b"} x`, 400, "follows"},
		{"POST", "/v1/sandboxes", `{"snapshot_tag`, 400, "body"},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"` + strings.Repeat("x", 3<<20) + `"}`, 413, "too large"},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"none"}`, 404, "none"},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"../x"}`, 400, "snapshot_tag"},
		{"GET", "/v1/sandboxes/sb-none", "", 404, "sb-none"},
		{"POST", box + "/exec", `{"args":[]}`, 400, "args"},
		{"POST", box + "/exec", `{"args":["x"],"timeout_secs":1e9}`, 400, "timeout_secs"},
		{"POST", box + "/exec", `{"args":["baduser"]}`, 400, "no such user"},
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
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var body map[string]string
		err = json.NewDecoder(resp.Body).Decode(&body)
		resp.Body.Close()
		if resp.StatusCode != c.status || err != nil || !strings.Contains(body["error"], c.message) {
			t.Errorf("%s %s %.60s: %d %v (%v), want %d with %q", c.method, c.path, c.body, resp.StatusCode, body, err, c.status, c.message)
		}
	}
}

func TestTokenAndAudit(t *testing.T) {
	_, url, auditLog, _ := serve(t)
	for path, want := range map[string]int{"/healthz": 200, "/healthz/": 200, "/version": 401, "/metrics": 401, "/v1/sandboxes": 401} {
		resp, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s without a token: %d, want %d", path, resp.StatusCode, want)
		}
	}
	for range 1000 { // an answer may reach the client before its line is written
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
