package opcount

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmtest"
)

// Numbers are how often a process has made each system call, by its number.
type Numbers map[int]uint64

// mostNumber is higher than every number of a system call of x86-64.
const mostNumber = 512

// Numbers returns the system calls of a process since New.
func (c *Counter) Numbers(pid int) (Numbers, error) {
	out := Numbers{}
	for i := range mostNumber {
		n, err := c.lookup(key{uint32(pid), kindNumber, uint32(i)})
		if err != nil {
			return nil, err
		}
		if n > 0 {
			out[i] = n
		}
	}
	return out, nil
}

// Ioctls returns how often a process has made an ioctl with the given request since New.
func (c *Counter) Ioctls(pid int, request uint32) (uint64, error) {
	return c.lookup(key{uint32(pid), kindIoctl, request})
}

// Sub returns the system calls since the given numbers were read.
func (n Numbers) Sub(before Numbers) Numbers {
	out := Numbers{}
	for i, times := range n {
		if times > before[i] {
			out[i] = times - before[i]
		}
	}
	return out
}

// Of returns the sum for several system calls.
func (n Numbers) Of(numbers ...int) (sum uint64) {
	for _, i := range numbers {
		sum += n[i]
	}
	return sum
}

// String lists the system calls, the most frequent first.
func (n Numbers) String() string {
	var numbers []int
	for i := range n {
		numbers = append(numbers, i)
	}
	slices.SortFunc(numbers, func(a, b int) int { return cmp.Or(cmp.Compare(n[b], n[a]), cmp.Compare(a, b)) })
	var out []string
	for _, i := range numbers {
		out = append(out, fmt.Sprintf("%d %s", n[i], cmp.Or(names[i], fmt.Sprintf("call %d", i))))
	}
	return strings.Join(out, ", ")
}

// names has the names of the system calls that VMMs and the daemon make often.
var names = map[int]string{
	unix.SYS_READ: "read", unix.SYS_WRITE: "write", unix.SYS_CLOSE: "close", unix.SYS_FSTAT: "fstat",
	unix.SYS_MMAP: "mmap", unix.SYS_MPROTECT: "mprotect", unix.SYS_MUNMAP: "munmap", unix.SYS_BRK: "brk",
	unix.SYS_RT_SIGACTION: "rt_sigaction", unix.SYS_RT_SIGPROCMASK: "rt_sigprocmask",
	unix.SYS_RT_SIGRETURN: "rt_sigreturn", unix.SYS_IOCTL: "ioctl", unix.SYS_PREAD64: "pread64",
	unix.SYS_PWRITE64: "pwrite64", unix.SYS_READV: "readv", unix.SYS_WRITEV: "writev", unix.SYS_MADVISE: "madvise",
	unix.SYS_NANOSLEEP: "nanosleep", unix.SYS_GETPID: "getpid", unix.SYS_SOCKET: "socket",
	unix.SYS_CONNECT: "connect", unix.SYS_SENDTO: "sendto", unix.SYS_RECVFROM: "recvfrom",
	unix.SYS_SENDMSG: "sendmsg", unix.SYS_RECVMSG: "recvmsg", unix.SYS_SHUTDOWN: "shutdown", unix.SYS_BIND: "bind",
	unix.SYS_LISTEN: "listen", unix.SYS_SOCKETPAIR: "socketpair", unix.SYS_SETSOCKOPT: "setsockopt",
	unix.SYS_GETSOCKOPT: "getsockopt", unix.SYS_CLONE: "clone", unix.SYS_EXECVE: "execve", unix.SYS_EXIT: "exit",
	unix.SYS_WAIT4: "wait4", unix.SYS_FCNTL: "fcntl", unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync",
	unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_SIGALTSTACK: "sigaltstack", unix.SYS_PRCTL: "prctl",
	unix.SYS_ARCH_PRCTL: "arch_prctl", unix.SYS_GETTID: "gettid", unix.SYS_FUTEX: "futex",
	unix.SYS_SCHED_GETAFFINITY: "sched_getaffinity", unix.SYS_GETDENTS64: "getdents64",
	unix.SYS_EPOLL_CTL: "epoll_ctl", unix.SYS_TGKILL: "tgkill", unix.SYS_WAITID: "waitid",
	unix.SYS_OPENAT: "openat", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_FCHOWNAT: "fchownat",
	unix.SYS_NEWFSTATAT: "newfstatat", unix.SYS_UNLINKAT: "unlinkat", unix.SYS_RENAMEAT: "renameat",
	unix.SYS_LINKAT: "linkat", unix.SYS_FCHMODAT: "fchmodat", unix.SYS_EPOLL_PWAIT: "epoll_pwait",
	unix.SYS_FALLOCATE: "fallocate", unix.SYS_TIMERFD_SETTIME: "timerfd_settime", unix.SYS_ACCEPT4: "accept4",
	unix.SYS_EVENTFD2: "eventfd2", unix.SYS_EPOLL_CREATE1: "epoll_create1", unix.SYS_PIPE2: "pipe2",
	unix.SYS_PRLIMIT64: "prlimit64", unix.SYS_SECCOMP: "seccomp", unix.SYS_MEMFD_CREATE: "memfd_create",
	unix.SYS_BPF: "bpf", unix.SYS_RENAMEAT2: "renameat2", unix.SYS_PIDFD_OPEN: "pidfd_open",
	unix.SYS_PIDFD_SEND_SIGNAL: "pidfd_send_signal", unix.SYS_CLONE3: "clone3",
	unix.SYS_LSEEK: "lseek", unix.SYS_FCHMOD: "fchmod", unix.SYS_STATFS: "statfs", unix.SYS_OPENAT2: "openat2",
	unix.SYS_SCHED_YIELD: "sched_yield", unix.SYS_DUP3: "dup3",
}

// Start returns a Counter that ends with the test. Without the rights to count, a test that boots
// VMs in the emulated host fails there, and is skipped elsewhere. For command testrun, every test
// that calls Start is a VM test.
func Start(t testing.TB) *Counter {
	t.Helper()
	c, err := New()
	if err != nil {
		vmtest.NeedKVM(t) // skips the test where the emulated host will run it
		if vmtest.Emulated() {
			t.Fatal(err)
		}
		t.Skip("the kernel does not let this process count: ", err)
	}
	t.Cleanup(c.Close)
	return c
}

// Budget is the upper bound of a count.
type Budget struct {
	What string // what is counted, as the subject of "grew"
	Most uint64 // a little more than what was measured when the budget was set
}

// Check fails the test if a count is above its budget. The message of a failure lists the given
// system calls, which may be nil.
func (b Budget) Check(t testing.TB, have uint64, detail Numbers) {
	t.Helper()
	if have <= b.Most {
		t.Logf("%s: %d of %d", b.What, have, b.Most)
		return
	}
	more := ""
	if len(detail) > 0 {
		more = ": " + detail.String()
	}
	t.Errorf("%s grew to %d, the budget is %d%s", b.What, have, b.Most, more)
}
