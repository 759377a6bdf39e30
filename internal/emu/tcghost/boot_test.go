package tcghost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/emu/debkernel"
	"github.com/forkd/forkd/internal/emu/debqemu"
	"github.com/forkd/forkd/internal/emu/machineapi"
)

// superviseEnv is an environment variable. If it is set, it names an emulated host, and the test
// binary is the supervisor of that emulated host.
const superviseEnv = "FORKD_TEST_SUPERVISE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(superviseEnv); dir != "" {
		os.Exit(testSupervisor(dir, os.Args[1]))
	}
	os.Exit(m.Run())
}

func testSupervisor(cache, name string) int {
	signal.Ignore(syscall.SIGHUP)
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	// Exit with the test. A real supervisor outlives the process that started it.
	go func() {
		for parent := os.Getppid(); os.Getppid() == parent; {
			time.Sleep(time.Second)
		}
		cancel()
	}()
	m, err := Open(cache, name)
	if err == nil {
		err = m.Supervise(ctx)
	}
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		return 1
	}
	return 0
}

// bootMachine returns an emulated host with the user's cache directory. If the kernel is not in the
// cache, it skips the test.
func bootMachine(t *testing.T) Machine {
	t.Helper()
	if testing.Short() {
		t.Skip("boots an emulated host: not with -short")
	}
	if _, err := exec.LookPath(debqemu.Program); err != nil {
		t.Skip("no QEMU")
	}
	if _, err := embedded.Open(embedded.Machined); err != nil {
		t.Skip(err)
	}
	cache, err := cachedir.Dir()
	if err != nil {
		t.Skip(err)
	}
	m, err := Open(cache, fmt.Sprintf("boot-test-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := debkernel.Find(m.kernelDir()); err != nil {
		t.Skipf("no kernel yet, `forkd machine start` fetches one: %v", err)
	}
	t.Setenv(superviseEnv, cache)
	t.Cleanup(func() {
		if _, err := m.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(m.dir); err != nil {
			t.Error(err)
		}
	})
	return m
}

func (m Machine) testStart(t *testing.T) State {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := DefaultOptions()
	o.MemoryMiB, o.DiskGiB, o.HangLimit = 512, 1, 20*time.Second
	s, err := m.Start(t.Context(), o, []string{self, m.Name}, func(msg string) { t.Log(msg) })
	if err != nil {
		t.Fatalf("%v\nsupervisor: %s\nconsole: %s", err, m.logTail(fileSuperLog, 2000), m.logTail(fileConsole, 2000))
	}
	return s
}

// testShell runs a script that must succeed and returns its output.
func (m Machine) testShell(t *testing.T, script string) string {
	t.Helper()
	var out, errs bytes.Buffer
	exit, err := m.Exec(t.Context(), shell(script), Stdio{Out: &out, Err: &errs})
	if err != nil || exit != (machineapi.ExecExit{}) {
		t.Fatalf("%s: %+v, %v, %s", script, exit, err, errs.String())
	}
	return strings.TrimSpace(out.String())
}

// TestMachineLife boots one machine, and tests all operations that end a boot, or that continue
// after the end of a boot.
func TestMachineLife(t *testing.T) {
	m := bootMachine(t)
	first := m.testStart(t)
	t.Run("is a host with KVM", func(t *testing.T) { testHost(t, m) })
	t.Run("a second start changes nothing", func(t *testing.T) {
		if again := m.testStart(t); again.BootID != first.BootID {
			t.Errorf("boot %s became %s", first.BootID, again.BootID)
		}
	})
	t.Run("exec leaves nothing running", func(t *testing.T) {
		m.testShell(t, "setsid sleep 12345 & sleep 0.2")
		if got := m.testShell(t, "ps | grep '[s]leep 12345' | wc -l; ls -d /sys/fs/cgroup/exec/*/ | wc -l"); got != "0\n1" {
			t.Errorf("processes and cgroups left: %q, want 0 and its own", got)
		}
	})
	m.testShell(t, "echo kept > /var/lib/forkd/file; sync")
	t.Run("a hung emulated host is reported and restarted", func(t *testing.T) { testHang(t, m) })
	t.Run("QEMU dies with its supervisor", func(t *testing.T) { testSupervisorKilled(t, m) })
	t.Run("stop leaves no process", func(t *testing.T) {
		s := m.testStart(t)
		if got := m.testShell(t, "cat /var/lib/forkd/file"); got != "kept" {
			t.Errorf("state disk has %q", got)
		}
		if ran, err := m.Stop(t.Context()); err != nil || !ran {
			t.Errorf("stop: %v, %v", ran, err)
		}
		if s.QEMU.alive() || !s.Supervisor.waitGone(testPatience) {
			t.Error("a process is left")
		}
		if now, err := m.State(); err != nil || now.Phase != Stopped || now.LastFailure != "" {
			t.Errorf("state after stop: %+v, %v", now, err)
		}
		if log := m.logTail(fileSuperLog, 2000); strings.Contains(log, "still there") || strings.Contains(log, "killed") {
			t.Errorf("the emulated host did not go down in order: %s", log)
		}
		if ran, err := m.Stop(t.Context()); err != nil || ran {
			t.Errorf("second stop: %v, %v", ran, err)
		}
	})
}

func testHost(t *testing.T, m Machine) {
	for _, device := range []string{"/dev/kvm", "/dev/userfaultfd", "/dev/net/tun"} {
		m.testShell(t, "test -c "+device)
	}
	if got := m.testShell(t, "cat /sys/kernel/mm/transparent_hugepage/enabled"); got != "always madvise [never]" {
		t.Errorf("huge pages: %s", got)
	}
	testShares(t, m)
}

// testShares checks which files of this host the emulated host sees. Root in the emulated host can
// mount each share writable, so this host must refuse writes, except to the one share that is meant
// to be writable.
func testShares(t *testing.T, m Machine) {
	path := filepath.Join(m.path(dirRun), "shared")
	if err := os.WriteFile(path, []byte("from the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := m.testShell(t, "cat "+path); got != "from the host" {
		t.Errorf("the emulated host reads %q", got)
	}
	for _, s := range m.shares() {
		m.testShell(t, "mount -o remount,rw "+s.Dir+"; cd "+s.Dir+"; echo x > written || rm -f shared || true")
		_, err := os.Stat(filepath.Join(s.Dir, "written"))
		if written := !errors.Is(err, fs.ErrNotExist); written != s.Writable {
			t.Errorf("the emulated host has written to %s: %v, want %v", s.Dir, written, s.Writable)
		}
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the emulated host has removed a file: %v", err)
	}
	link := filepath.Join(m.path(dirOut), "link")
	m.testShell(t, "ln -s /etc/passwd "+link)
	if info, err := os.Lstat(link); err != nil || !info.Mode().IsRegular() {
		t.Errorf("a link that the emulated host has made is one for this host: %v, %v", info, err)
	}
	for _, name := range []string{m.path(fileToken), m.path(fileOptions), m.qemuDir(), m.kernelDir()} {
		if got := m.testShell(t, "ls -d "+name+" 2>/dev/null || echo hidden"); got != "hidden" {
			t.Errorf("the emulated host sees %s", name)
		}
	}
}

func testHang(t *testing.T, m Machine) {
	before, err := m.State()
	if err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	go func() {
		r.Read(make([]byte, 1)) // wait until the program is running
		if err := before.QEMU.kill(unix.SIGSTOP); err != nil {
			t.Error(err)
		}
		io.Copy(io.Discard, r)
	}()
	_, err = m.Exec(t.Context(), shell("echo x; sleep 600"), Stdio{Out: w})
	if !errors.Is(err, ErrLost) {
		t.Errorf("exec: got %v, want ErrLost", err)
	}
	after := m.testStart(t) // returns after the restart
	if after.BootID == before.BootID || after.Restarts < 1 || !strings.Contains(after.LastFailure, "hung") {
		t.Errorf("after the hang: %+v", after)
	}
	if before.QEMU.alive() {
		t.Error("the hung QEMU is still there")
	}
	if after.DaemonAddr != before.DaemonAddr {
		t.Logf("daemon port changed from %s to %s", before.DaemonAddr, after.DaemonAddr)
	}
}

func testSupervisorKilled(t *testing.T, m Machine) {
	s, err := m.State()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Supervisor.kill(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if !s.QEMU.waitGone(testPatience) {
		t.Error("QEMU outlived its supervisor")
	}
	if !m.awaitUnsupervised(t.Context(), testPatience) {
		t.Error("the supervisor's lock outlived it")
	}
	if now, err := m.State(); err != nil || now.Phase != Failed {
		t.Errorf("state: %+v, %v", now, err)
	}
}
