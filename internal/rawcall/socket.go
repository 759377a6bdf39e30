package rawcall

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Accept accepts a connection from a listening socket in non-blocking mode. It does not return the
// client's address. The parameter mode is SOCK_NONBLOCK or, for a connection in blocking mode, 0.
func Accept(listener, mode int) (fd int, err error) {
	return onFD(unix.SYS_ACCEPT4, listener, nil, 0, uintptr(mode)|unix.SOCK_CLOEXEC)
}

// PeerContextID returns the context id of the other end of a vsock connection.
func PeerContextID(fd int) (uint32, error) {
	var addr unix.RawSockaddrVM
	size := uint32(unsafe.Sizeof(addr))
	_, _, errno := unix.RawSyscall(unix.SYS_GETPEERNAME, uintptr(fd), uintptr(unsafe.Pointer(&addr)),
		uintptr(unsafe.Pointer(&size)))
	if errno == 0 && addr.Family != unix.AF_VSOCK {
		errno = unix.EAFNOSUPPORT
	}
	return addr.Cid, orNil(errno)
}

// Peek reads data from a socket without removing it. It does not block, no matter what mode the
// socket has.
func Peek(fd int, p []byte) (int, error) {
	return onFD(unix.SYS_RECVFROM, fd, start(p), len(p), unix.MSG_PEEK|unix.MSG_DONTWAIT)
}

// SetReadTimeout limits how long a read from a socket in blocking mode may wait. After that time,
// the read fails with EAGAIN. If the read is interrupted and repeated, the time begins again.
func SetReadTimeout(fd int, t unix.Timeval) error {
	return setOption(fd, unix.SO_RCVTIMEO, unsafe.Pointer(&t), unsafe.Sizeof(t))
}

// SetSendBuffer requests a size for the send buffer of a socket, in bytes. The kernel doubles the
// size, and limits it to net.core.wmem_max.
func SetSendBuffer(fd int, size int32) error {
	return setOption(fd, unix.SO_SNDBUF, unsafe.Pointer(&size), unsafe.Sizeof(size))
}

func setOption(fd, option int, value unsafe.Pointer, size uintptr) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, uintptr(option),
		uintptr(value), size, 0)
	return orNil(errno)
}

// HungUp reports whether the other end of a socket is closed, or whether the socket has an error.
func HungUp(fd int) bool {
	poll := unix.PollFd{Fd: int32(fd)}
	_, err := again(func() (uintptr, uintptr, unix.Errno) {
		now := unix.Timespec{}
		return unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	})
	return err != nil || poll.Revents&(unix.POLLHUP|unix.POLLERR) != 0
}

// EpollWait writes pending events to the slice events, and returns their number. It does not wait
// for events.
func EpollWait(epoll int, events []unix.EpollEvent) (int, error) {
	return onFD(unix.SYS_EPOLL_WAIT, epoll, unsafe.Pointer(unsafe.SliceData(events)), len(events), 0)
}

// EpollCtl adds a descriptor to an epoll instance, changes it or removes it.
func EpollCtl(epoll, op, fd int, event *unix.EpollEvent) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epoll), uintptr(op), uintptr(fd),
		uintptr(unsafe.Pointer(event)), 0, 0)
	return orNil(errno)
}
