package vmm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Values of the environment variable that the constant role names. Each value makes the test
// program run as one of the processes below, and make checks in it.
const (
	inside = "inside" // a process in a jail whose filter permits all calls
	watch  = "watch"  // a daemon that is not root, and starts a VMM without namespaces
)

// lookInside prints what this process can access when its filter permits all calls.
func lookInside() int {
	everything := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
	if err := jail.Enter(jail.Config{Filter: everything, Files: maxFiles}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return jail.ExitCode
	}
	_, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	fmt.Fprintf(os.Stderr, "open: %v\n", err)
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	fmt.Fprintf(os.Stderr, "dumpable: %d %v\n", dumpable, err)
	var cookie uint64
	err = unix.Prctl(unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_GET, 0, unix.PR_SCHED_CORE_SCOPE_THREAD,
		uintptr(unsafe.Pointer(&cookie)))
	fmt.Fprintf(os.Stderr, "cookie: %#x %v\n", cookie, err)
	var threads unix.Rlimit
	err = unix.Getrlimit(unix.RLIMIT_NPROC, &threads)
	fmt.Fprintf(os.Stderr, "threads: %v %v\n", threads.Cur == 1024, err)
	return 0
}

// TestPostureInside tests properties of a jail that are not visible in /proc, so the checks run in
// the jail. Landlock denies access to the (empty) root directory. Other processes cannot read the
// VMM's memory. The VMM shares no CPU core with other processes. Its number of threads is limited.
func TestPostureInside(t *testing.T) {
	program := program(t)
	for name, c := range map[string]struct {
		options           jail.Options
		dumpable, threads string
	}{
		"whole":              {jail.Options{}, "dumpable: 0 <nil>\n", "threads: true <nil>\n"},
		"without namespaces": {jail.Options{NoNamespaces: true}, "dumpable: 1 <nil>\n", "threads: false <nil>\n"},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, log := startWith(t, c.options, program, inside)
			state, err := p.Wait()
			if err != nil || !state.Success() {
				t.Fatal(state, err)
			}
			said, err := os.ReadFile(log.Name())
			if err != nil {
				t.Fatal(err)
			}
			text := string(said)
			if !strings.Contains(text, c.dumpable) || !strings.Contains(text, c.threads) {
				t.Errorf("it may be read, or has too few threads:\n%s", text)
			}
			if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0,
				unix.LANDLOCK_CREATE_RULESET_VERSION); errno != 0 {
				t.Logf("this kernel has no Landlock: %v", errno)
			} else if !strings.Contains(text, "open: permission denied\n") {
				t.Errorf("it may open a directory:\n%s", text)
			}
			switch {
			case strings.Contains(text, "cookie: 0x0 invalid argument"), strings.Contains(text, "cookie: 0x0 no such device"):
				t.Log("this kernel has no core scheduling")
			case strings.Contains(text, "cookie: 0x0 "):
				t.Errorf("it shares its core with others:\n%s", text)
			}
		})
	}
}

// A daemon that is not root, and starts its VMMs without namespaces, can still read a VMM's memory
// usage and program. It can also set how early the kernel kills the VMM if memory runs out.
func TestPostureWithoutNamespaces(t *testing.T) {
	dir, err := os.MkdirTemp("", "fkt") // other users cannot enter the test's own directory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	binary, err := os.ReadFile(program(t))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "p")
	if err := os.WriteFile(path, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	daemon := exec.Command(path, dir)
	daemon.Env, daemon.Dir = []string{role + "=" + watch}, "/"
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		daemon.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	if out, err := daemon.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

// watchAVMM is the daemon of TestPostureWithoutNamespaces. It starts a VMM, with the program and
// the control socket in the directory os.Args[1], and checks the VMM from outside.
func watchAVMM() int {
	fail := func(what string, err error) int {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		return 1
	}
	jails, err := jail.New(jail.Options{NoNamespaces: true})
	if err != nil {
		return fail("start", err)
	}
	path := filepath.Join(os.Args[1], "s")
	listener, err := ctlsock.Listen(path)
	if err != nil {
		return fail("listen", err)
	}
	conn, err := ctlsock.Dial(path)
	if err != nil {
		return fail("dial", err)
	}
	attr := os.ProcAttr{Dir: "/", Env: []string{role + "=vmm", "GOMAXPROCS=1"},
		Files: []*os.File{nil, nil, os.Stderr, os.NewFile(uintptr(listener), "listener")}}
	p, err := jails.Start(filepath.Join(os.Args[1], "p"), []string{"forkd-vmm"}, attr, false)
	if err != nil {
		return fail("start", err)
	}
	defer p.Wait()
	defer conn.Close()
	// The VMM can answer only after it has entered its jail.
	if err := conn.Send(vmmproto.KindCreate, nil); err != nil {
		return fail("send", err)
	}
	if kind, _, _, err := conn.Receive(); err != nil || kind != vmmproto.KindError {
		return fail("receive", err)
	}
	proc := fmt.Sprintf("/proc/%d/", p.Pid)
	if _, err := os.Stat(proc + "exe"); err != nil {
		return fail("which program it is", err)
	}
	if _, err := os.ReadFile(proc + "smaps_rollup"); err != nil {
		return fail("how much memory it has", err)
	}
	if err := os.WriteFile(proc+"oom_score_adj", []byte("500"), 0); err != nil {
		return fail("how soon it is to end", err)
	}
	return 0
}
