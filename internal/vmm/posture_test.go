package vmm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/jail/posture"
	"github.com/forkd/forkd/internal/jail/violation"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmtest"
)

// role is the name of an environment variable that makes the test program run as a VMM or as
// another process. Its value may be the name of a forbidden operation, which the VMM then attempts.
const role = "FORKD_TEST_ROLE"

func TestMain(m *testing.M) {
	switch do := os.Getenv(role); do {
	case "":
		os.Exit(m.Run())
	case "vmm":
		os.Exit(Main())
	case inside:
		os.Exit(lookInside())
	case watch:
		os.Exit(watchAVMM())
	default:
		err := jail.Enter(jail.Config{Filter: allowed[:], Files: maxFiles})
		if err == nil && do == tooLong {
			err = jail.LimitFiles(vm.PageSize)
		}
		if err == nil && strings.HasSuffix(do, withMachine) {
			do, err = strings.TrimSuffix(do, withMachine), jail.Narrow(denied[:])
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(jail.ExitCode)
		}
		errno := attempt(do)
		fmt.Fprintf(os.Stderr, "%s returned %v\n", do, errno)
		os.Exit(0)
	}
}

func attempt(do string) error {
	if setUp, ok := setUpAttempts[do]; ok {
		return setUp()
	}
	if do != tooLong {
		return attempts[do]()
	}
	for range 2 * vm.PageSize {
		if _, err := os.Stderr.WriteString("x"); err != nil {
			return err
		}
	}
	return nil
}

// attempts are system calls that a VMM must not be able to make. The keys are the Linux names of
// the calls, with notes on the arguments.
var attempts = map[string]func() error{
	"socket":         raw(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0),
	"connect":        raw(unix.SYS_CONNECT, 3, 0, 0),
	"openat":         raw(unix.SYS_OPENAT, 0, 0, unix.O_RDONLY),
	"open":           raw(unix.SYS_OPEN, 0, unix.O_RDONLY, 0),
	"execve":         raw(unix.SYS_EXECVE, 0, 0, 0),
	"ptrace":         raw(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0),
	"clone3":         raw(unix.SYS_CLONE3, 0, 0, 0),
	"unshare":        raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER, 0, 0),
	"mprotect":       raw(unix.SYS_MPROTECT, 0, 4096, unix.PROT_READ|unix.PROT_EXEC),
	"memfd_create":   raw(unix.SYS_MEMFD_CREATE, 0, 0, 0),
	"shmget":         raw(unix.SYS_SHMGET, 0, 4096, 0o1600), // VMMs share one IPC namespace
	"semget":         raw(unix.SYS_SEMGET, 0, 1, 0o1600),
	"msgget":         raw(unix.SYS_MSGGET, 0, 0o1600, 0),
	"mq_open":        raw(unix.SYS_MQ_OPEN, 0, unix.O_RDWR, 0),
	"io_uring_setup": raw(unix.SYS_IO_URING_SETUP, 1, 0, 0),
	"clone fork":     raw(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0),
	"mmap code":      raw(unix.SYS_MMAP, 0, 4096, unix.PROT_READ|unix.PROT_EXEC),
	"mmap huge pages": raw(unix.SYS_MMAP, 0, 2<<20, unix.PROT_READ,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB),
	"ioctl TIOCSTI":       raw(unix.SYS_IOCTL, 2, unix.TIOCSTI, 0),
	"prctl dumpable":      raw(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1, 0),
	"prctl slack":         raw(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, 10_000_000, 0),
	"fcntl owner":         raw(unix.SYS_FCNTL, 2, unix.F_SETOWN, 1),
	"fcntl append":        raw(unix.SYS_FCNTL, 2, unix.F_SETFL, unix.O_APPEND|unix.O_NONBLOCK),
	"fcntl blocking":      raw(unix.SYS_FCNTL, 2, unix.F_SETFL, 0),
	"rt_sigaction SIGSYS": raw(unix.SYS_RT_SIGACTION, uintptr(unix.SIGSYS), 0, 0),
	"rt_sigaction wide":   raw(unix.SYS_RT_SIGACTION, 1<<32|uintptr(unix.SIGSYS), 0, 0),
	"setsockopt other":    raw(unix.SYS_SETSOCKOPT, 3, unix.SOL_SOCKET, unix.SO_REUSEADDR),
	"socketpair":          raw(unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_STREAM, 0),
	"sendmsg":             raw(unix.SYS_SENDMSG, 3, 0, 0),
	"sendmmsg":            raw(unix.SYS_SENDMMSG, 3, 0, 0),
	"sendto an address":   raw(unix.SYS_SENDTO, 3, 0, 0, unix.MSG_NOSIGNAL, 1),
	"sendto with flags":   raw(unix.SYS_SENDTO, 3, 0, 0, unix.MSG_NOSIGNAL|unix.MSG_OOB, 0),
	"ppoll of two":        raw(unix.SYS_PPOLL, 0, 2, 0, 0),
	"fallocate":           raw(unix.SYS_FALLOCATE, 2, 0, 0),
	"prlimit64 other":     raw(unix.SYS_PRLIMIT64, 1, unix.RLIMIT_FSIZE, 0),
	"prlimit64 threads":   raw(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NPROC, 0),
}

// withMachine is the suffix of the names of attempts that need a VMM with a machine.
const withMachine = " with a machine"

// setUpAttempts are the system calls that create a machine, by name. The KVM requests have the
// numbers and names of linux/kvm.h.
var setUpAttempts = map[string]func() error{
	"epoll_create1":              raw(unix.SYS_EPOLL_CREATE1, 0),
	"KVM_CREATE_VM":              raw(unix.SYS_IOCTL, 2, 0xae01, 0),
	"KVM_CREATE_VCPU":            raw(unix.SYS_IOCTL, 2, 0xae41, 0),
	"KVM_SET_USER_MEMORY_REGION": raw(unix.SYS_IOCTL, 2, 0x4020ae46, 0),
	"KVM_SET_TSS_ADDR":           raw(unix.SYS_IOCTL, 2, 0xae47, 0),
	"KVM_SET_IDENTITY_MAP_ADDR":  raw(unix.SYS_IOCTL, 2, 0x4008ae48, 0),
	"KVM_CREATE_IRQCHIP":         raw(unix.SYS_IOCTL, 2, 0xae60, 0),
	"KVM_ENABLE_CAP":             raw(unix.SYS_IOCTL, 2, 0x4068aea3, 0),
	"KVM_GET_SUPPORTED_CPUID":    raw(unix.SYS_IOCTL, 2, 0xc008ae05, 0),
}

// tooLong is the name of the attempt to write a file that is too long.
const tooLong = "a long file"

// A VMM cannot write a file that is longer than a layer may be.
func TestPostureBoundsFiles(t *testing.T) {
	p, _, log := start(t, program(t), tooLong)
	state, err := p.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if st, err := log.Stat(); err != nil || st.Size() != vm.PageSize || !state.Success() {
		t.Errorf("it ended with %v, having written %d bytes, %v", state, st.Size(), err)
	}
}

// raw returns a function that makes a system call with the given first arguments. The other
// arguments are suitable for an anonymous mapping.
func raw(number uintptr, first ...uintptr) func() error {
	args := [6]uintptr{4: ^uintptr(0)}
	copy(args[:], first)
	return func() error {
		_, _, errno := syscall.RawSyscall6(number, args[0], args[1], args[2], args[3], args[4], args[5])
		return errno
	}
}

func program(t *testing.T) string {
	t.Helper()
	path, err := posture.TestProgram(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// start runs the test program in the given role (do), and starts it in the same way as the daemon
// starts a VMM. It returns the process, the daemon's end of the control socket, and the file that
// receives the process's output.
func start(t *testing.T, program, do string) (*os.Process, *ctlsock.Conn, *os.File) {
	t.Helper()
	return startWith(t, jail.Options{}, program, do)
}

func startWith(t *testing.T, o jail.Options, program, do string) (*os.Process, *ctlsock.Conn, *os.File) {
	t.Helper()
	jails, err := jail.New(o)
	if err != nil {
		t.Fatal(err)
	}
	dir := vmtest.ShortDir(t)
	listener, err := ctlsock.Listen(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	socket := os.NewFile(uintptr(listener), "listener")
	defer socket.Close()
	conn, err := ctlsock.Dial(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	attr := os.ProcAttr{Dir: "/", Env: []string{role + "=" + do, "GOMAXPROCS=1", "GODEBUG=containermaxprocs=0"},
		Files: []*os.File{nil, nil, log, socket}}
	p, err := jails.Start(program, []string{"forkd-vmm"}, attr, false)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EUSERS) {
		t.Skipf("this host allows no namespaces: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p, conn, log
}

// Start must give a process its descriptors in the right order, whatever numbers the descriptors
// have in the process that calls Start.
func TestStartWithHighDescriptors(t *testing.T) {
	bin := program(t)
	jails, err := jail.New(jail.Options{})
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for number := 60; number < 70; number++ {
		fd, err := unix.FcntlInt(log.Fd(), unix.F_DUPFD_CLOEXEC, number)
		if err != nil {
			t.Fatal(err)
		}
		high := os.NewFile(uintptr(fd), "log")
		attr := os.ProcAttr{Env: []string{role + "=" + tooLong}, Files: []*os.File{nil, nil, high, high}}
		p, err := jails.Start(bin, []string{"forkd-vmm"}, attr, false)
		_ = high.Close()
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EUSERS) {
			t.Skipf("this host allows no namespaces: %v", err)
		}
		if err != nil {
			t.Errorf("with descriptor %d: %v", fd, err)
			continue
		}
		if state, err := p.Wait(); err != nil || !state.Exited() {
			t.Errorf("it ended with %v, %v", state, err)
		}
	}
}

// A VMM that waits for its daemon is already in its jail.
func TestPostureOfAShell(t *testing.T) {
	p, conn, log := start(t, program(t), "vmm")
	t.Cleanup(func() {
		_ = conn.Close()
		if state, err := p.Wait(); err != nil || state.ExitCode() != exitClean {
			text, _ := os.ReadFile(log.Name())
			t.Errorf("the VMM ended with %v, %v:\n%s", state, err, text)
		}
	})
	// The VMM can answer, even to an unknown request, only after it has entered its jail.
	if err := conn.Send(vmmproto.KindCreate, nil); err != nil {
		t.Fatal(err)
	}
	if kind, _, _, err := conn.Receive(); err != nil || kind != vmmproto.KindError {
		t.Fatalf("kind %d, %v", kind, err)
	}
	for _, loose := range posture.Check(p.Pid, posture.Want{Files: maxFiles, Descriptors: []string{
		`(/dev)?/null`, ".*/log", `socket:\[\d+\]`, `.*/\d+/pagemap`, `anon_inode:\[(eventpoll|eventfd)\]`,
	}}) {
		t.Error(loose)
	}
	if entry := pageOf(t, p.Pid); entry>>63 != 1 || entry&(1<<55-1) != 0 {
		t.Errorf("its page map says %#x of a page that is there: want no frame number", entry)
	}
}

// pageOf returns the word that a VMM reads in its page map for the first page of its program.
func pageOf(t *testing.T, pid int) uint64 {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if target, _ := os.Readlink(link); !strings.HasSuffix(target, "/pagemap") {
			continue
		}
		number, err := strconv.Atoi(filepath.Base(link))
		if err != nil {
			t.Fatal(err)
		}
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(pidfd)
		// Use the VMM's open file. Opening the page map again would give this process's own map.
		fd, err := unix.PidfdGetfd(pidfd, number, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		const program = 0x400000 // link address of a static program
		entry := make([]byte, 8)
		if _, err := unix.Pread(fd, entry, program/vm.PageSize*8); err != nil {
			t.Fatal(err)
		}
		return binary.LittleEndian.Uint64(entry)
	}
	t.Fatal("it has no page map")
	return 0
}

// If a VMM makes a system call that it does not need, it is killed, and package violation names the
// call.
func TestPostureDeniesCalls(t *testing.T) {
	program := program(t)
	for _, do := range slices.Sorted(maps.Keys(attempts)) {
		t.Run(do, func(t *testing.T) {
			p, _, log := start(t, program, do)
			state, err := p.Wait()
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(log.Name())
			if err != nil {
				t.Fatal(err)
			}
			call, _, _ := strings.Cut(do, " ")
			if named := violation.Call(string(text)); state.Success() || named != call {
				t.Errorf("it ended with %v, for %q:\n%s", state, named, text)
			}
		})
	}
}

// When a VMM has created its machine, it can neither create another machine nor change the parts of
// the machine, nor make pollers. It can still make the requests that run the machine.
func TestPostureNarrowsWithAMachine(t *testing.T) {
	program := program(t)
	for _, request := range slices.Sorted(maps.Keys(setUpAttempts)) {
		for _, c := range []struct {
			do     string
			passes bool
		}{{request, true}, {request + withMachine, false}} {
			t.Run(c.do, func(t *testing.T) {
				p, _, log := start(t, program, c.do)
				state, err := p.Wait()
				if err != nil {
					t.Fatal(err)
				}
				text, err := os.ReadFile(log.Name())
				if err != nil {
					t.Fatal(err)
				}
				named := violation.Call(string(text))
				if state.Success() != c.passes || !c.passes && named != "ioctl" && named != request {
					t.Errorf("it ended with %v, for %q:\n%s", state, named, text)
				}
			})
		}
	}
}
