package tcghost

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// testPatience is how long a test waits for an event that must occur. No event should take nearly
// that long.
const testPatience = 30 * time.Second

// proxy forwards TCP connections until it is cut.
type proxy struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: l}
	t.Cleanup(p.cut)
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				in.Close()
				return
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			go io.Copy(in, out)
			go io.Copy(out, in)
		}
	}()
	return p
}

func (p *proxy) cut() {
	p.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
}

func testMachine(t *testing.T) Machine {
	t.Helper()
	m, err := Open(t.TempDir(), "test")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.makeDir(); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestOpenRefusesNames(t *testing.T) {
	for _, name := range []string{"", "..", "a/b", "A", "-a", "a b", strings.Repeat("a", 33)} {
		if _, err := Open("/cache", name); err == nil {
			t.Errorf("%q: no error", name)
		}
	}
	if _, err := Open("cache", "a"); err == nil {
		t.Error("relative cache directory: no error")
	}
}

func TestOptionsValidate(t *testing.T) {
	if err := DefaultOptions().validate(); err != nil {
		t.Errorf("default options: %v", err)
	}
	for name, change := range map[string]func(*Options){
		"memory": func(o *Options) { o.MemoryMiB = 100 }, "disk": func(o *Options) { o.DiskGiB = 0 },
		"hang limit": func(o *Options) { o.HangLimit = time.Second },
	} {
		o := DefaultOptions()
		change(&o)
		if err := o.validate(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestStateNeedsItsSupervisor(t *testing.T) {
	m := testMachine(t)
	if s, err := m.State(); err != nil || s.Phase != Stopped {
		t.Errorf("never started: %+v, %v", s, err)
	}
	if err := m.writeState(State{Name: "test", Phase: Ready}); err != nil {
		t.Fatal(err)
	}
	if s, err := m.State(); err != nil || s.Phase != Failed || s.LastFailure == "" {
		t.Errorf("without supervisor: %+v, %v", s, err)
	}
	lock, err := tryLock(m.path(fileSuperLock))
	if err != nil {
		t.Fatal(err)
	}
	if s, err := m.State(); err != nil || s.Phase != Ready {
		t.Errorf("with supervisor: %+v, %v", s, err)
	}
	if _, err := tryLock(m.path(fileSuperLock)); !errors.Is(err, errLocked) {
		t.Errorf("second supervisor: got %v, want errLocked", err)
	}
	lock.Close()
	if s, err := m.State(); err != nil || s.Phase != Failed {
		t.Errorf("after the supervisor's end: %+v, %v", s, err)
	}
	if err := os.WriteFile(m.path(fileState), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.State(); err == nil || !strings.Contains(err.Error(), m.path(fileState)) {
		t.Errorf("damaged file: got %v, want an error with its path", err)
	}
}

func TestTokenIsMadeOnceAndPrivate(t *testing.T) {
	m := testMachine(t)
	a, err := m.token()
	if err != nil {
		t.Fatal(err)
	}
	b, err := m.token()
	if err != nil || a != b || len(a) != 64 {
		t.Errorf("got %q, then %q, %v", a, b, err)
	}
	if info, err := os.Stat(m.path(fileToken)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info, err)
	}
}

func TestFreeAddrPrefersTheOldOne(t *testing.T) {
	a, err := freeAddr("")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := freeAddr(a); err != nil || b != a {
		t.Errorf("got %s, %v, want %s again", b, err, a)
	}
	l, err := net.Listen("tcp", a)
	if err != nil {
		t.Skipf("somebody took %s: %v", a, err)
	}
	defer l.Close()
	if b, err := freeAddr(a); err != nil || b == a {
		t.Errorf("got %s, %v, want another one than the taken", b, err)
	}
}

func TestProcessIdentity(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	other := Process{PID: p.PID, StartTime: p.StartTime + 1} // an earlier process with the same id
	if err := other.kill(unix.SIGKILL); !errors.Is(err, errGone) || other.alive() {
		t.Errorf("kill of the id's last owner: got %v, want errGone", err)
	}
	if !p.alive() {
		t.Fatal("the wrong process was killed")
	}
	if err := p.kill(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if err := p.kill(unix.SIGKILL); !errors.Is(err, errGone) || !p.waitGone(0) {
		t.Errorf("kill after the end: got %v, want errGone", err)
	}
	if err := (Process{}).kill(unix.SIGKILL); !errors.Is(err, errGone) {
		t.Errorf("kill of nothing: got %v, want errGone", err)
	}
}

func TestStartTimeWithStrangeNames(t *testing.T) {
	line := "7 (a) b (c)) S 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 8192 1"
	if got, err := startTime([]byte(line)); err != nil || got != 4711 {
		t.Errorf("got %d, %v, want 4711", got, err)
	}
	for _, bad := range []string{"", "7 (a", "7 (a) S 1 2", ")"} {
		if _, err := startTime([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestQEMUArgsEscapeCommas(t *testing.T) {
	m, err := Open("/cache,dir", "test")
	if err != nil {
		t.Fatal(err)
	}
	list := m.qemuArgs(DefaultOptions(), "/vmlinux", "127.0.0.1:1", "127.0.0.1:2")
	args := strings.Join(list, " ")
	for _, want := range []string{"path=/cache,,dir", "hostfwd=tcp:127.0.0.1:1-:8888", "hostfwd=tcp:127.0.0.1:2-:8889"} {
		if !strings.Contains(args, want) {
			t.Errorf("no %q in %s", want, args)
		}
	}
	for i, arg := range list {
		own := i+1 < len(list) && strings.HasSuffix(list[i+1], "/machine/test/out") &&
			strings.Contains(list[i+1], "=mapped-file,")
		if arg == "-fsdev" && !own && !strings.Contains(list[i+1], ",readonly=on,") {
			t.Errorf("the emulated host can write to a directory of this host: %s", list[i+1])
		}
	}
}

// The shares of an emulated host contain no token except the token of its own daemon, and no
// program that the host runs.
func TestSharesAreNarrow(t *testing.T) {
	m, err := Open(t.TempDir(), "test")
	if err != nil {
		t.Fatal(err)
	}
	other, err := Open(m.CacheDir(), "other")
	if err != nil {
		t.Fatal(err)
	}
	if len(m.shares()) == 0 {
		t.Error("it sees nothing")
	}
	for _, secret := range []string{m.path(fileToken), m.path(fileOptions), m.path(fileInitrd), m.path(fileDisk),
		other.path(fileToken), other.DaemonDir(), other.path(dirRun), m.qemuDir(), m.kernelDir()} {
		for _, s := range m.shares() {
			if rel, err := filepath.Rel(s.Dir, secret); err == nil && filepath.IsLocal(rel) {
				t.Errorf("the emulated host sees %s by its share %s", secret, s.Dir)
			}
		}
	}
}
