package rawcall

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Accept accepts a connection of a listening socket in non-blocking mode, without returning its
// address. mode applies to the connection: SOCK_NONBLOCK, or 0 for blocking calls.
func Accept(listener, mode int) (fd int, err error) {
	return onFD(unix.SYS_ACCEPT4, listener, nil, 0, uintptr(mode)|unix.SOCK_CLOEXEC)
}

// Peek reads data of a socket without removing it. It does not wait, whatever the socket's mode.
func Peek(fd int, p []byte) (int, error) {
	return onFD(unix.SYS_RECVFROM, fd, start(p), len(p), unix.MSG_PEEK|unix.MSG_DONTWAIT)
}

// SetReadTimeout bounds the wait of each read from a socket in blocking mode. After that time a
// read fails with EAGAIN. An interruption of the read restarts the time.
func SetReadTimeout(fd int, t unix.Timeval) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_RCVTIMEO,
		uintptr(unsafe.Pointer(&t)), unsafe.Sizeof(t), 0)
	return orNil(errno)
}

// HungUp reports whether the other end of a socket is closed, or the socket has an error.
func HungUp(fd int) bool {
	poll := unix.PollFd{Fd: int32(fd)}
	_, err := again(func() (uintptr, uintptr, unix.Errno) {
		now := unix.Timespec{}
		return unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	})
	return err != nil || poll.Revents&(unix.POLLHUP|unix.POLLERR) != 0
}

// EpollWait returns the number of pending events.
func EpollWait(epoll int, events []unix.EpollEvent) (int, error) {
	return onFD(unix.SYS_EPOLL_WAIT, epoll, unsafe.Pointer(unsafe.SliceData(events)), len(events), 0)
}

// EpollCtl adds, changes or removes a descriptor.
func EpollCtl(epoll, op, fd int, event *unix.EpollEvent) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epoll), uintptr(op), uintptr(fd),
		uintptr(unsafe.Pointer(event)), 0, 0)
	return orNil(errno)
}
