// Package rawcall makes system calls without informing the Go runtime.
//
// An ordinary system call wakes the runtime's monitor thread if it sleeps. The monitor then wakes
// up every 20 us until all threads of Go code are idle. That causes most context switches of a
// mostly idle VMM. In a freshly forked guest it also causes copies of pages: of stacks, and of
// tables of the kernel and the runtime.
//
// The monitor exists to run other goroutines while a call waits. A thread in one of this package's
// calls keeps its processor of Go's scheduler. So use these calls only if they return at once: on
// descriptors in non-blocking mode, on files in memory, and for writes for which a socket has room.
// A restore also reads and maps files with them, because everything else in a VMM waits for the
// restore. A read with a time limit (SetReadTimeout) may wait too: if a garbage collection begins,
// it interrupts the read and runs first.
//
// An interrupted call is repeated, so callers never see EINTR. Errors are bare unix.Errno values.
// After an error nothing was transferred, and n is 0.
package rawcall

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// again repeats a call while a signal interrupts it. It is not inlined, so call is not inlined into
// it either. The prologue of call, which runs before each try, lets the scheduler preempt the
// goroutine.
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

// onFD makes a call on a descriptor and a buffer. If it is interrupted, it is repeated.
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

// Close closes a descriptor that needs no further work, such as a socket's. It is never repeated,
// because Linux closes the descriptor even if it returns an error.
func Close(fd int) error {
	_, _, errno := unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
	return orNil(errno)
}

// IoctlInt is ioctl(2) with a pointer to a C int, which some requests ignore.
func IoctlInt(fd int, request uint, value int32) error {
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&value)))
	return orNil(errno)
}

// Random reads from getrandom(2) on a host whose generator has been seeded. If a signal arrives, it
// returns fewer bytes.
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

// usualPath is the size of a stack buffer for a path, in bytes.
const usualPath = 128

// Exists reports whether a path exists, with one system call. The path must not contain a zero
// byte. It returns at once only if the file systems on the path respond at once. If root in a guest
// mounts a file system there that never responds, the whole agent waits.
func Exists(path string) bool {
	p := append(append(make([]byte, 0, usualPath), path...), 0)
	_, _, errno := unix.RawSyscall(unix.SYS_ACCESS, uintptr(start(p)), unix.F_OK, 0)
	return errno == 0
}

// Stat is stat(2) of a path, under the conditions of Exists.
func Stat[Path string | []byte](path Path, into *unix.Stat_t) error {
	p := append(append(make([]byte, 0, usualPath), path...), 0)
	_, _, errno := unix.RawSyscall(unix.SYS_STAT, uintptr(start(p)), uintptr(unsafe.Pointer(into)), 0)
	return orNil(errno)
}
