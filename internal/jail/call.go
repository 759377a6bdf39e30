package jail

import (
	"math"

	"golang.org/x/sys/unix"
)

// Call is a system call that a process may make. Number is its number (unix.SYS_*). If several
// Calls have the same number, the process's call must match one of them.
type Call struct {
	Number uintptr
	Where  []Condition // conditions that must all hold; if empty, any arguments are permitted
	Deny   unix.Errno  // if not 0, the call is not made but fails with this error
}

// Condition is a condition on the value of one argument.
type Condition struct {
	Argument int
	Mask     uint64 // the bits that are compared
	Value    uint64 // required value of these bits
	Not      bool   // whether, instead, the whole argument must differ from Value; Mask is then ignored
}

// Is returns the condition that an argument equals the given value.
func Is(argument int, value uint64) Condition {
	return Condition{Argument: argument, Mask: ^uint64(0), Value: value}
}

// IsNot returns the conditions that an argument differs from the given value and that the
// argument's upper half is zero. Linux uses only the lower half of some arguments. Without the
// second condition, a process could pass the value with other bits in the upper half.
func IsNot(argument int, value uint32) []Condition {
	return []Condition{
		{Argument: argument, Value: uint64(value), Not: true},
		{Argument: argument, Mask: math.MaxUint32 << 32},
	}
}

// Lacks returns the condition that none of the given bits is set in an argument.
func Lacks(argument int, bits uint64) Condition { return Condition{Argument: argument, Mask: bits} }

// Has returns the condition that all given bits are set in an argument.
func Has(argument int, bits uint64) Condition {
	return Condition{Argument: argument, Mask: bits, Value: bits}
}

// Calls returns, for each of the given numbers, a Call that permits the system call with any
// arguments. Use it only for system calls that affect nothing but descriptors and memory that the
// process already has.
func Calls(numbers ...uintptr) []Call {
	calls := make([]Call, len(numbers))
	for i, n := range numbers {
		calls[i].Number = n
	}
	return calls
}

// Ioctls returns Calls that permit ioctl with the given requests.
func Ioctls(requests ...uint64) []Call {
	calls := make([]Call, len(requests))
	for i, r := range requests {
		calls[i] = With(unix.SYS_IOCTL, Is(1, r))
	}
	return calls
}

// With returns a Call that permits a system call whose arguments meet the conditions.
func With(number uintptr, where ...Condition) Call { return Call{Number: number, Where: where} }

// newThread are the flags with which Go's runtime creates a thread (cloneFlags in
// runtime/os_linux.go, and CLONE_SETTLS, which sys_linux_amd64.s adds). clone is not permitted with
// other flags. clone3 is not permitted at all, because a filter cannot read its flags. The runtime
// does not use clone3.
const newThread = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_SYSVSEM |
	unix.CLONE_THREAD | unix.CLONE_SETTLS

// RuntimeCalls returns the calls that Go's runtime makes, and the calls that package os makes on
// open files. These calls can allocate memory, but not make it executable. They cannot replace the
// handler of SIGSYS. This signal kills a process that makes a forbidden call.
func RuntimeCalls() []Call {
	return append(Calls(unix.SYS_READ, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_LSEEK,
		unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_FUTEX, unix.SYS_NANOSLEEP,
		unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_CLOCK_GETTIME, unix.SYS_RESTART_SYSCALL,
		unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_GETTID, unix.SYS_GETPID,
		unix.SYS_TGKILL, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_GETRANDOM,
		unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_WAIT, unix.SYS_EVENTFD2),
		// Huge pages that the host has reserved do not count against any memory limit, so they are
		// not permitted.
		With(unix.SYS_MMAP, Lacks(2, unix.PROT_EXEC), Lacks(3, unix.MAP_HUGETLB)),
		With(unix.SYS_CLONE, Is(0, newThread)),
		With(unix.SYS_RT_SIGACTION, IsNot(0, uint32(unix.SIGSYS))...),
		With(unix.SYS_PRCTL, Is(0, unix.PR_SET_VMA)), // names a range of memory
		With(unix.SYS_FCNTL, Is(1, unix.F_GETFL)),
		// Flags of an open file affect every process that shares the descriptor. If a jailed
		// process set O_APPEND, the daemon's writes at an offset would append to the file. If the
		// process cleared O_NONBLOCK on a stream that it has passed to the daemon, the daemon's
		// reads could block for ever.
		With(unix.SYS_FCNTL, Is(1, unix.F_SETFL), Has(2, unix.O_NONBLOCK),
			Lacks(2, unix.O_DIRECT|unix.O_ASYNC|unix.O_NOATIME|unix.O_APPEND)),
		With(unix.SYS_FCNTL, Is(1, unix.F_GETFD)),
		With(unix.SYS_FCNTL, Is(1, unix.F_DUPFD_CLOEXEC)))
}
