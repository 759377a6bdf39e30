package tcghost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/forkd/forkd/internal/emu/machineapi"
	"github.com/forkd/forkd/internal/emu/machined"
)

// fakeMachine is an emulated host without QEMU. Its API runs in this process, and the test holds
// the supervisor's lock.
func fakeMachine(t *testing.T) (Machine, *httptest.Server) {
	t.Helper()
	m, err := Open(t.TempDir(), "fake")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.makeDir(); err != nil {
		t.Fatal(err)
	}
	lock, err := tryLock(m.path(fileSuperLock))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	token, err := m.token()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(machined.NewHandler(machineapi.Config{Token: token, BootID: "b1"}, "", func() {}))
	t.Cleanup(server.Close)
	s := State{Name: "fake", Phase: Ready, BootID: "b1", InitAddr: strings.TrimPrefix(server.URL, "http://")}
	if err := m.writeState(s); err != nil {
		t.Fatal(err)
	}
	return m, server
}

func shell(script string, args ...string) machineapi.ExecStart {
	return machineapi.ExecStart{Argv: append([]string{"sh", "-c", script, "sh"}, args...)}
}

func TestExecStreamsAndExitCode(t *testing.T) {
	m, _ := fakeMachine(t)
	var out, errs bytes.Buffer
	start := shell(`cat; echo "$X in $PWD" >&2; exit 42`)
	start.Env, start.Dir = []string{"X=y"}, "/usr"
	exit, err := m.Exec(t.Context(), start, Stdio{In: strings.NewReader("input"), Out: &out, Err: &errs})
	if err != nil || exit.Code != 42 || out.String() != "input" || errs.String() != "y in /usr\n" {
		t.Errorf("got %+v, %v, %q, %q", exit, err, out.String(), errs.String())
	}
}

func TestExecLargeStreams(t *testing.T) {
	m, _ := fakeMachine(t)
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB
	var out bytes.Buffer
	exit, err := m.Exec(t.Context(), shell("cat"), Stdio{In: bytes.NewReader(want), Out: &out})
	if err != nil || exit.Code != 0 || !bytes.Equal(out.Bytes(), want) {
		t.Errorf("got %+v, %v, %d bytes of %d", exit, err, out.Len(), len(want))
	}
}

func TestExecInputNobodyReads(t *testing.T) {
	m, _ := fakeMachine(t)
	exit, err := m.Exec(t.Context(), shell("exit 5"), Stdio{In: bytes.NewReader(make([]byte, 8<<20))})
	if err != nil || exit.Code != 5 {
		t.Errorf("got %+v, %v", exit, err)
	}
}

func TestExecEndsAreDistinct(t *testing.T) {
	m, _ := fakeMachine(t)
	slow := shell("sleep 600")
	slow.TimeoutMS = 50
	badDir := shell("true")
	badDir.Dir = "/no/such/dir"
	for name, c := range map[string]struct {
		start machineapi.ExecStart
		ok    func(machineapi.ExecExit) bool
	}{
		"timeout": {slow, func(e machineapi.ExecExit) bool { return e.TimedOut }},
		"signal":  {shell("kill -9 $$"), func(e machineapi.ExecExit) bool { return e.Signal == 9 && !e.TimedOut }},
		"not found": {machineapi.ExecStart{Argv: []string{"no-such-program"}}, func(e machineapi.ExecExit) bool {
			return e.NotFound
		}},
		"not started": {badDir, func(e machineapi.ExecExit) bool { return e.Error != "" }},
		"directory": {machineapi.ExecStart{Argv: []string{"/usr"}}, func(e machineapi.ExecExit) bool {
			return e.Error != "" && !e.NotFound
		}},
		"empty": {machineapi.ExecStart{}, func(e machineapi.ExecExit) bool { return e.Error != "" }},
	} {
		exit, err := m.Exec(t.Context(), c.start, Stdio{})
		if err != nil || !c.ok(exit) {
			t.Errorf("%s: got %+v, %v", name, exit, err)
		}
	}
}

func TestExecSignalsArePassedOn(t *testing.T) {
	m, _ := fakeMachine(t)
	r, w := io.Pipe()
	signals := make(chan os.Signal, 1)
	go func() {
		r.Read(make([]byte, 1)) // wait until the shell has set its trap
		signals <- syscall.SIGTERM
		io.Copy(io.Discard, r)
	}()
	exit, err := m.Exec(t.Context(), shell(`trap 'exit 9' TERM; echo x; while :; do sleep 0.05; done`),
		Stdio{Out: w, Signals: signals})
	if err != nil || exit.Code != 9 {
		t.Errorf("got %+v, %v", exit, err)
	}
}

// TestExecKillsTheTree ends a program in three ways. Each time, the program has a child that would
// run for ever.
func TestExecKillsTheTree(t *testing.T) {
	m, _ := fakeMachine(t)
	const script = `sleep 600 & echo $!; eval "$1"`
	run := func(ctx context.Context, end string, timeoutMS int64, seen func(Process)) (machineapi.ExecExit, error) {
		r, w := io.Pipe()
		go func() {
			var pid int
			if _, err := fmt.Fscan(r, &pid); err != nil {
				t.Error(err)
				return
			}
			p, err := identify(pid)
			if err != nil && !errors.Is(err, errGone) {
				t.Error(err)
			}
			seen(p)
			io.Copy(io.Discard, r)
		}()
		start := shell(script, end)
		start.TimeoutMS = timeoutMS
		return m.Exec(ctx, start, Stdio{Out: w})
	}
	t.Run("its end", func(t *testing.T) {
		child := make(chan Process, 1)
		exit, err := run(t.Context(), "exit 1", 0, func(p Process) { child <- p })
		if err != nil || exit.Code != 1 || !(<-child).waitGone(testPatience) {
			t.Errorf("got %+v, %v", exit, err)
		}
	})
	t.Run("timeout", func(t *testing.T) {
		child := make(chan Process, 1)
		exit, err := run(t.Context(), "wait", 300, func(p Process) { child <- p })
		if err != nil || !exit.TimedOut || !(<-child).waitGone(testPatience) {
			t.Errorf("got %+v, %v", exit, err)
		}
	})
	t.Run("the client goes away", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		child := make(chan Process, 1)
		_, err := run(ctx, "wait", 0, func(p Process) { child <- p; cancel() })
		if !errors.Is(err, context.Canceled) || !(<-child).waitGone(testPatience) {
			t.Errorf("got %v", err)
		}
	})
}

// A program that does not read its input is also killed when its client disconnects.
func TestExecEndsWithItsClientWhileInputWaits(t *testing.T) {
	m, _ := fakeMachine(t)
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	child := make(chan Process, 1)
	go func() {
		var pid int
		fmt.Fscan(r, &pid)
		p, _ := identify(pid)
		child <- p
		cancel()
		io.Copy(io.Discard, r)
	}()
	_, err := m.Exec(ctx, shell("echo $$; sleep 600"), Stdio{In: bytes.NewReader(make([]byte, 8<<20)), Out: w})
	if !errors.Is(err, context.Canceled) || !(<-child).waitGone(testPatience) {
		t.Errorf("got %v", err)
	}
}

func TestExecWithoutMachine(t *testing.T) {
	m, err := Open(t.TempDir(), "none")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Exec(t.Context(), shell("true"), Stdio{}); !errors.Is(err, ErrNotRunning) {
		t.Errorf("got %v, want ErrNotRunning", err)
	}
	if _, err := m.DaemonStatus(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("daemon: got %v, want ErrNotRunning", err)
	}
}

// TestExecLostMachineSaysWhy breaks the connection, as a dying QEMU would.
func TestExecLostMachineSaysWhy(t *testing.T) {
	m, server := fakeMachine(t)
	target := server.Listener.Addr().String()
	proxy := startProxy(t, target)
	s, err := m.State()
	if err != nil {
		t.Fatal(err)
	}
	s.InitAddr = proxy.Addr().String()
	if err := m.writeState(s); err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	go func() {
		r.Read(make([]byte, 1))
		s.BootID, s.LastFailure = "b2", "hung: no answer for 5s"
		if err := m.writeState(s); err != nil {
			t.Error(err)
		}
		proxy.cut()
		io.Copy(io.Discard, r)
	}()
	_, err = m.Exec(t.Context(), shell("echo x; sleep 600"), Stdio{Out: w})
	if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "no answer for 5s") {
		t.Errorf("got %v, want ErrLost with the reason", err)
	}
}

func TestExecRefusedIsNotLost(t *testing.T) {
	m, _ := fakeMachine(t)
	if err := os.WriteFile(m.path(fileToken), []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := m.Exec(t.Context(), shell("true"), Stdio{})
	if err == nil || errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "token") {
		t.Errorf("got %v, want the emulated host's refusal", err)
	}
}

func TestExecOutputErrorIsNotTheMachines(t *testing.T) {
	m, _ := fakeMachine(t)
	_, err := m.Exec(t.Context(), shell("echo x; sleep 600"), Stdio{Out: brokenWriter{}})
	if !errors.Is(err, io.ErrClosedPipe) || errors.Is(err, ErrLost) {
		t.Errorf("got %v", err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestCopyIn(t *testing.T) {
	m, err := Open(t.TempDir(), "copy")
	if err != nil {
		t.Fatal(err)
	}
	src := t.TempDir()
	program, data := filepath.Join(src, "p"), filepath.Join(src, "testdata")
	if err := errors.Join(os.WriteFile(program, []byte("x"), 0o600), os.MkdirAll(data+"/sub", 0o755),
		os.WriteFile(data+"/sub/f", []byte("y"), 0o600)); err != nil {
		t.Fatal(err)
	}
	dir, path, err := m.CopyIn(program, data)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 || !strings.HasPrefix(dir, m.path(dirRun)) {
		t.Errorf("program %s: %v, %v", path, info, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "testdata", "sub", "f")); err != nil || string(b) != "y" {
		t.Errorf("data: %q, %v", b, err)
	}
	if _, _, err := m.CopyIn(program, filepath.Join(src, "none")); err != nil {
		t.Errorf("without data: %v", err)
	}
	if _, _, err := m.CopyIn(filepath.Join(src, "none"), data); err == nil {
		t.Error("without program: no error")
	}
	left, err := filepath.Glob(m.path(dirRun) + "/*")
	if err != nil || len(left) != 2 {
		t.Errorf("%d copies left, want those of the two that worked", len(left))
	}
}
