// Package rawcall makes system calls without telling the Go runtime about them.
//
// An ordinary system call wakes the runtime's monitor thread if the thread is asleep. The monitor
// then wakes up every 20 us until all threads that run Go code are idle. Most context switches of a
// mostly idle VMM have this cause. In a newly forked guest, the wake-ups also make the kernel copy
// pages with stacks and tables of the kernel and the runtime.
//
// The monitor lets other goroutines run while an ordinary system call blocks. During a call of this
// package, the thread keeps its processor (P) of Go's scheduler, so other goroutines may have to
// wait. Therefore, use these functions only for calls that return at once: calls on descriptors in
// non-blocking mode, calls on files in memory, and writes for which a socket has room. A restore
// also uses these functions to read and map files, because all other work in a VMM waits for the
// restore. A read with a time limit (SetReadTimeout) may also block. A garbage collection
// interrupts such a read, and the read is repeated afterwards.
//
// An interrupted call is repeated, so callers never receive EINTR. Errors are bare unix.Errno
// values. If a function returns an error, nothing was transferred, and n is 0.
package rawcall

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// again runs the given function, which makes a system call, and repeats this while signals
// interrupt the system call. The prologue of the given function lets the scheduler preempt the
// goroutine before each try. If the compiler inlined this function into its caller, it could inline
// the given function too, and there would be no prologue.
//
//go:noinline
func again(call func() (uintptr, uintptr, unix.Errno)) (int, error) {
	for {
		switch r, _, errno := call(); errno {
		case 0:
			return int(r), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// onFD makes a system call with a descriptor and a buffer, and repeats the call if a signal
// interrupts it.
func onFD(trap uintptr, fd int, p unsafe.Pointer, n int, arg uintptr) (int, error) {
	return again(func() (uintptr, uintptr, unix.Errno) {
		return unix.RawSyscall6(trap, uintptr(fd), uintptr(p), uintptr(n), arg, 0, 0)
	})
}

func orNil(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

func start(p []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(p)) }

// Read is read(2).
func Read(fd int, p []byte) (int, error) { return onFD(unix.SYS_READ, fd, start(p), len(p), 0) }

// Write is write(2).
func Write(fd int, p []byte) (int, error) { return onFD(unix.SYS_WRITE, fd, start(p), len(p), 0) }

// Pread is pread(2).
func Pread(fd int, p []byte, offset int64) (int, error) {
	return onFD(unix.SYS_PREAD64, fd, start(p), len(p), uintptr(offset))
}

// Pwrite is pwrite(2).
func Pwrite(fd int, p []byte, offset int64) (int, error) {
	return onFD(unix.SYS_PWRITE64, fd, start(p), len(p), uintptr(offset))
}

// Size returns the length of a file, in bytes.
func Size(fd int) (int64, error) {
	var st unix.Stat_t
	_, _, errno := unix.RawSyscall(unix.SYS_FSTAT, uintptr(fd), uintptr(unsafe.Pointer(&st)), 0)
	return st.Size, orNil(errno)
}

// Close closes a descriptor that the kernel can close at once, such as a socket. The system call is
// never repeated, because Linux closes the descriptor even if the call returns an error.
func Close(fd int) error {
	_, _, errno := unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
	return orNil(errno)
}

// IoctlInt is ioctl(2) with a pointer to a C int. Some requests ignore the int.
func IoctlInt(fd int, request uint, value int32) error {
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&value)))
	return orNil(errno)
}

// Random is getrandom(2). The kernel's generator must have been seeded, because the call blocks
// until then. If a signal interrupts the call, Random may return fewer bytes.
func Random(p []byte) (int, error) {
	return again(func() (uintptr, uintptr, unix.Errno) {
		return unix.RawSyscall(unix.SYS_GETRANDOM, uintptr(start(p)), uintptr(len(p)), 0)
	})
}

// SetClock is clock_settime(2) for the wall clock.
func SetClock(t unix.Timespec) error {
	_, _, errno := unix.RawSyscall(unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, uintptr(unsafe.Pointer(&t)), 0)
	return orNil(errno)
}

// SetHostname is sethostname(2).
func SetHostname(name []byte) error {
	_, _, errno := unix.RawSyscall(unix.SYS_SETHOSTNAME, uintptr(start(name)), uintptr(len(name)), 0)
	return orNil(errno)
}

// usualPath is the size, in bytes, of the buffer on the stack that holds a path. A longer path is
// allocated on the heap.
const usualPath = 128

// Exists reports whether a path exists, with one system call. The path must not contain a zero
// byte. The call returns at once if the file systems on the path answer at once. In a guest, root
// could mount, on the path, a file system that never answers. The whole agent would then wait.
func Exists(path string) bool {
	p := append(append(make([]byte, 0, usualPath), path...), 0)
	_, _, errno := unix.RawSyscall(unix.SYS_ACCESS, uintptr(start(p)), unix.F_OK, 0)
	return errno == 0
}

// Stat is stat(2) of a path. The path must meet the same conditions as for Exists.
func Stat[Path string | []byte](path Path, into *unix.Stat_t) error {
	p := append(append(make([]byte, 0, usualPath), path...), 0)
	_, _, errno := unix.RawSyscall(unix.SYS_STAT, uintptr(start(p)), uintptr(unsafe.Pointer(into)), 0)
	return orNil(errno)
}
