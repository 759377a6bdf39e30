// Package rawcall makes system calls that do not wait, without telling the Go runtime of them.
//
// An ordinary system call wakes the runtime's monitor thread if that sleeps. It then looks around
// every 20 us until all threads of Go code are idle, which costs a process that is mostly idle most
// of its context switches. It does so to run other goroutines while the call waits; so what waits,
// such as a read of a file, has no place here: nothing else would run.
//
// A call that a signal has interrupted is made again. With an error nothing was transferred.
package rawcall

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// onBuffer makes a call on a descriptor and a buffer.
func onBuffer(trap uintptr, fd int, p unsafe.Pointer, n int, flags uintptr) (int, error) {
	for {
		r, _, errno := unix.RawSyscall6(trap, uintptr(fd), uintptr(p), uintptr(n), flags, 0, 0)
		switch errno {
		case 0:
			return int(r), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

func start(p []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(p)) }

// Read reads from a descriptor in non-blocking mode.
func Read(fd int, p []byte) (int, error) { return onBuffer(unix.SYS_READ, fd, start(p), len(p), 0) }

// Write writes to a descriptor in non-blocking mode.
func Write(fd int, p []byte) (int, error) { return onBuffer(unix.SYS_WRITE, fd, start(p), len(p), 0) }

// Peek reads from a socket what stays in it.
func Peek(fd int, p []byte) (int, error) {
	return onBuffer(unix.SYS_RECVFROM, fd, start(p), len(p), unix.MSG_PEEK|unix.MSG_DONTWAIT)
}

// Accept takes a connection from a listening socket in non-blocking mode. It gets that mode, too.
func Accept(listener int) (fd int, err error) {
	return onBuffer(unix.SYS_ACCEPT4, listener, nil, 0, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
}

// Random reads from getrandom(2) of a host whose generator has been seeded. It gives less than it
// is asked for if a signal comes.
func Random(p []byte) (int, error) {
	for {
		r, _, errno := unix.RawSyscall(unix.SYS_GETRANDOM, uintptr(start(p)), uintptr(len(p)), 0)
		switch errno {
		case 0:
			return int(r), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// HungUp reports whether the other end of a socket is closed, or it has an error.
func HungUp(fd int) bool {
	poll, now := unix.PollFd{Fd: int32(fd)}, unix.Timespec{}
	_, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	return errno != 0 || poll.Revents&(unix.POLLHUP|unix.POLLERR) != 0
}

// EpollWait returns how many events there are now.
func EpollWait(epoll int, events []unix.EpollEvent) (int, error) {
	return onBuffer(unix.SYS_EPOLL_WAIT, epoll, unsafe.Pointer(unsafe.SliceData(events)), len(events), 0)
}

// EpollCtl adds, changes or removes a descriptor.
func EpollCtl(epoll, op, fd int, event *unix.EpollEvent) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epoll), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(event)), 0, 0)
	return orNil(errno)
}

// Close closes a socket or an eventfd.
func Close(fd int) error {
	_, _, errno := unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
	return orNil(errno)
}

func orNil(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}
