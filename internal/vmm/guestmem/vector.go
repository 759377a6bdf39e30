package guestmem

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Vector holds the parts of one message, for a system call that takes several parts. It reuses its
// storage. The heap of a VMM is hardly ever collected, so memory that is allocated for each message
// would never be freed.
type Vector struct{ parts []unix.Iovec }

// Reset makes v empty.
func (v *Vector) Reset() { v.parts = v.parts[:0] }

// Len returns the number of parts.
func (v *Vector) Len() int { return len(v.parts) }

// Add appends p, which must stay valid until the system call. It ignores an empty p.
func (v *Vector) Add(p []byte) {
	if len(p) > 0 {
		v.parts = append(v.parts, unix.Iovec{Base: &p[0], Len: uint64(len(p))})
	}
}

// Send sends the parts as one message on a socket that preserves message boundaries. If the socket
// is in non-blocking mode, Send does not wait.
func (v *Vector) Send(fd int) error {
	_, err := v.call(unix.SYS_WRITEV, fd, unsafe.Pointer(unsafe.SliceData(v.parts)), len(v.parts))
	return err
}

// Receive reads one message from a socket into the parts, and returns the message's length in
// bytes. With the flag MSG_TRUNC, it returns the length of the whole message, even if the message
// did not fit.
func (v *Vector) Receive(fd, flags int) (n int, err error) {
	var msg unix.Msghdr
	msg.Iov = unsafe.SliceData(v.parts)
	msg.SetIovlen(len(v.parts))
	return v.call(unix.SYS_RECVMSG, fd, unsafe.Pointer(&msg), flags)
}

func (v *Vector) call(number uintptr, fd int, p unsafe.Pointer, arg int) (int, error) {
	for {
		n, _, errno := unix.Syscall(number, uintptr(fd), uintptr(p), uintptr(arg))
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}
