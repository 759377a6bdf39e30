// Package rawcall makes system calls of which the Go runtime is not told.
//
// An ordinary system call wakes the runtime's monitor thread from its sleep, and with it others: in
// a child that has just been forked each of them copies pages of its stacks, of the kernel's and of
// the runtime's tables, and the monitor goes on to wake up many times. A fork makes no other calls
// than those here, as long as it has nothing unusual to do.
//
// The price is that a thread in one of these calls keeps its processor of the Go scheduler, and a
// garbage collection that begins must wait for it. So they are for calls that return at once, or
// whose waiting is bounded. EINTR is the caller's. Errors are bare unix.Errno values.
package rawcall

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Accept takes a connection from a listening socket, whose mode says whether it waits. It asks for
// no peer address. The connection is in blocking mode.
func Accept(listener int) (int, error) {
	return result(unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listener), 0, 0, unix.SOCK_CLOEXEC, 0, 0))
}

// Close closes a descriptor.
func Close(fd int) error {
	_, err := result(unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0))
	return err
}

// Read is read(2).
func Read(fd int, p []byte) (int, error) {
	return result(unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p))))
}

// Write is write(2).
func Write(fd int, p []byte) (int, error) {
	return result(unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p))))
}

// Pread is pread(2).
func Pread(fd int, p []byte, offset int64) (int, error) {
	return result(unix.RawSyscall6(unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)),
		uintptr(offset), 0, 0))
}

// Pwrite is pwrite(2).
func Pwrite(fd int, p []byte, offset int64) (int, error) {
	return result(unix.RawSyscall6(unix.SYS_PWRITE64, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)),
		uintptr(offset), 0, 0))
}

// IoctlInt is ioctl(2) with a pointer to a C int, which some requests do not look at.
func IoctlInt(fd int, request uint, value int32) error {
	_, err := result(unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&value))))
	return err
}

// SetReadTimeout bounds the waiting of each read from a socket; after it a read fails with EAGAIN.
func SetReadTimeout(fd int, t unix.Timeval) error {
	_, err := result(unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_RCVTIMEO,
		uintptr(unsafe.Pointer(&t)), unsafe.Sizeof(t), 0))
	return err
}

// SetClock is clock_settime(2) for the wall clock.
func SetClock(t unix.Timespec) error {
	_, err := result(unix.RawSyscall(unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, uintptr(unsafe.Pointer(&t)), 0))
	return err
}

// SetHostname is sethostname(2).
func SetHostname(name []byte) error {
	_, err := result(unix.RawSyscall(unix.SYS_SETHOSTNAME, uintptr(unsafe.Pointer(unsafe.SliceData(name))), uintptr(len(name)), 0))
	return err
}

// usualPath is room on the stack for a path, in bytes.
const usualPath = 128

// Exists asks in one system call whether there is something at a path, which must not contain a
// zero byte.
func Exists(path string) bool {
	p := append(append(make([]byte, 0, usualPath), path...), 0)
	_, _, errno := unix.RawSyscall(unix.SYS_ACCESS, uintptr(unsafe.Pointer(unsafe.SliceData(p))), unix.F_OK, 0)
	return errno == 0
}

func result(n, _ uintptr, errno unix.Errno) (int, error) {
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}
