package machined

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/emu/machineapi"
)

const token = "secret"

func serverFor(t *testing.T, powerOff func()) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(NewHandler(machineapi.Config{Token: token, BootID: "b1"}, "", powerOff))
	t.Cleanup(s.Close)
	return s
}

// call sends one request and returns the status and the body.
func call(t *testing.T, s *httptest.Server, method, path, auth string, body any) (int, []byte) {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(method, s.URL+path, bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, answer
}

func TestEveryPathNeedsTheToken(t *testing.T) {
	s := serverFor(t, func() { t.Error("powered off without the token") })
	for _, auth := range []string{"", "Bearer ", "Bearer wrong", "secret", "Basic secret"} {
		for _, c := range [][2]string{
			{"GET", machineapi.PathPing}, {"POST", machineapi.PathExec}, {"POST", machineapi.PathPowerOff},
			{"GET", machineapi.PathDaemon}, {"PUT", machineapi.PathDaemon},
			{"GET", machineapi.PathSpace}, {"GET", "/nothing"},
		} {
			if status, _ := call(t, s, c[0], c[1], auth, nil); status != http.StatusUnauthorized {
				t.Errorf("%s %s with %q: status %d, want 401", c[0], c[1], auth, status)
			}
		}
	}
}

func TestPingAndPowerOff(t *testing.T) {
	off := make(chan struct{})
	s := serverFor(t, func() { close(off) })
	status, body := call(t, s, "GET", machineapi.PathPing, "Bearer "+token, nil)
	var p machineapi.Ping
	if err := json.Unmarshal(body, &p); err != nil || status != 200 || p.BootID != "b1" || p.UptimeSeconds <= 0 {
		t.Errorf("ping: %d %s (%v)", status, body, err)
	}
	if status, _ := call(t, s, "POST", machineapi.PathExec, "Bearer "+token, nil); status != http.StatusUpgradeRequired {
		t.Errorf("exec without upgrade: status %d", status)
	}
	if status, _ := call(t, s, "POST", machineapi.PathPowerOff, "Bearer "+token, nil); status != http.StatusAccepted {
		t.Errorf("power off: status %d", status)
	}
	<-off
}

func TestDaemonLife(t *testing.T) {
	s := serverFor(t, func() {})
	request := func(method string, body any) (int, machineapi.DaemonStatus) {
		status, answer := call(t, s, method, machineapi.PathDaemon, "Bearer "+token, body)
		var d machineapi.DaemonStatus
		if status == 200 {
			if err := json.Unmarshal(answer, &d); err != nil {
				t.Fatal(err)
			}
		}
		return status, d
	}
	if status, _ := request("PUT", machineapi.DaemonStart{}); status != http.StatusBadRequest {
		t.Errorf("start without argv: status %d", status)
	}
	if status, _ := request("PUT",
		machineapi.DaemonStart{Argv: []string{"/no/such/program"}}); status != http.StatusBadRequest {
		t.Errorf("start of nothing: status %d", status)
	}
	marker := filepath.Join(t.TempDir(), "up")
	script := `trap 'echo bye; exit 3' TERM; echo "hello $WHO"; touch "$MARKER"; while :; do sleep 0.05; done`
	start := machineapi.DaemonStart{Argv: []string{"sh", "-c", script}, Env: []string{"WHO=you", "MARKER=" + marker}}
	status, d := request("PUT", start)
	if status != 200 || !d.Running || d.PID == 0 {
		t.Fatalf("start: %d %+v", status, d)
	}
	if status, _ := request("PUT", start); status != http.StatusConflict {
		t.Errorf("second start: status %d", status)
	}
	for {
		if _, err := os.Stat(marker); err == nil {
			break
		}
	}
	if err := syscall.Kill(d.PID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for d.Running {
		_, d = request("GET", nil)
	}
	if d.Restarting || d.Exit == nil || d.Exit.Code != 3 || d.Log != "hello you\nbye\n" {
		t.Errorf("after the end: %+v %+v", d, d.Exit)
	}
}

// A daemon that is killed is restarted, without a request by a client. A daemon is not restarted if
// it exits by itself at once or was abandoned.
func TestDaemonComesBack(t *testing.T) {
	await := func(d *daemon, what string, ok func(machineapi.DaemonStatus) bool) machineapi.DaemonStatus {
		t.Helper()
		for {
			s := d.status()
			if ok(s) {
				return s
			}
			if t.Context().Err() != nil {
				t.Fatalf("%s: %+v", what, s)
			}
			time.Sleep(time.Millisecond)
		}
	}
	d := &daemon{pause: time.Millisecond}
	if err := d.start(machineapi.DaemonStart{Argv: []string{"sleep", "1000"}}); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 3; n++ {
		pid := d.status().PID
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		await(d, "restart", func(s machineapi.DaemonStatus) bool { return s.Running && s.Restarts == n && s.PID != pid })
	}
	d.abandon()
	if err := syscall.Kill(d.status().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if s := await(d, "the end", func(s machineapi.DaemonStatus) bool { return !s.Running }); s.Restarting {
		t.Error("a daemon comes back while the emulated host goes down")
	}

	d = &daemon{pause: time.Hour}
	if err := d.start(machineapi.DaemonStart{Argv: []string{"sh", "-c", "kill -9 $$"}}); err != nil {
		t.Fatal(err)
	}
	await(d, "the pause", func(s machineapi.DaemonStatus) bool { return !s.Running && s.Restarting })
	d.abandon()
	if s := d.status(); s.Restarting {
		t.Errorf("abandoned while it pauses: %+v", s)
	}
	if err := d.start(machineapi.DaemonStart{Argv: []string{"sh", "-c", "echo wrong flag; exit 2"}}); err != nil {
		t.Fatal(err)
	}
	s := await(d, "the end", func(s machineapi.DaemonStatus) bool { return !s.Running })
	if s.Restarting || s.Exit == nil || s.Exit.Code != 2 || !strings.Contains(s.Log, "wrong flag") {
		t.Errorf("a daemon that cannot start: %+v %+v", s, s.Exit)
	}
}

// A daemon that was killed is restarted until it runs, even if one of the restarts fails at once.
func TestDaemonComesBackAfterAFailedStart(t *testing.T) {
	runs := filepath.Join(t.TempDir(), "runs")
	d := &daemon{pause: time.Millisecond}
	err := d.start(machineapi.DaemonStart{Argv: []string{"sh", "-c",
		`echo run >> "$0"; case $(wc -l < "$0") in 1) kill -9 $$;; 2|3) echo the lock is held; exit 1;; esac; exec sleep 1000`, runs}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.abandon()
	for {
		s := d.status()
		if s.Running && s.Restarts == 3 {
			d.abandon()
			_ = syscall.Kill(s.PID, syscall.SIGKILL)
			return
		}
		if !s.Running && !s.Restarting && s.Restarts > 0 {
			t.Fatalf("it was given up: %+v", s)
		}
		if t.Context().Err() != nil {
			t.Fatalf("%+v", s)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestSpace(t *testing.T) {
	s := serverFor(t, func() {})
	dir := t.TempDir()
	status, body := call(t, s, "GET", machineapi.PathSpace+"?dir="+dir+"&dir=/proc", "Bearer "+token, nil)
	var free machineapi.Space
	if err := json.Unmarshal(body, &free); err != nil || status != 200 || len(free) != 2 || free[dir] == 0 ||
		free["/proc"] != 0 {
		t.Errorf("%d %s (%v)", status, body, err)
	}
	status, body = call(t, s, "GET", machineapi.PathSpace+"?dir=/no/such/place", "Bearer "+token, nil)
	if status != http.StatusNotFound || !strings.Contains(string(body), "/no/such/place") {
		t.Errorf("a place that is not there: %d %s", status, body)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	var l tail
	for range 10 {
		if _, err := io.WriteString(&l, strings.Repeat("a", daemonLogBytes/4)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(&l, "end"); err != nil {
		t.Fatal(err)
	}
	if got := l.String(); len(got) != daemonLogBytes || !strings.HasSuffix(got, "aend") {
		t.Errorf("kept %d bytes", len(got))
	}
}

func TestMainOutsideTheMachineRefuses(t *testing.T) {
	if code := Main(nil); code != 2 {
		t.Errorf("exit code %d, want 2", code)
	}
}
