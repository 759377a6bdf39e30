package rawcall

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// PacketLength returns the length of the next packet of a SOCK_SEQPACKET socket in non-blocking
// mode, or 0 at the end of the connection.
func PacketLength(fd int) (int, error) {
	var msg unix.Msghdr
	return onMessage(unix.SYS_RECVMSG, fd, &msg, unix.MSG_PEEK|unix.MSG_TRUNC)
}

// ReceivePacket fills p with the next packet, and oob with the packet's control data, and returns
// their lengths. The flags contain MSG_TRUNC if p was too short, and MSG_CTRUNC if oob was too
// short.
func ReceivePacket(fd int, p, oob []byte) (n, oobn, flags int, err error) {
	iov, msg := message(p, oob)
	msg.Iov = &iov
	n, err = onMessage(unix.SYS_RECVMSG, fd, &msg, unix.MSG_CMSG_CLOEXEC)
	return n, int(msg.Controllen), int(msg.Flags), err
}

// SendPacket sends p with the control data oob. Without control data, it does not use sendmsg(2),
// which the filter of a VMM forbids.
func SendPacket(fd int, p, oob []byte) error {
	if len(oob) == 0 {
		_, err := onFD(unix.SYS_SENDTO, fd, start(p), len(p), unix.MSG_NOSIGNAL)
		return err
	}
	iov, msg := message(p, oob)
	msg.Iov = &iov
	_, err := onMessage(unix.SYS_SENDMSG, fd, &msg, unix.MSG_NOSIGNAL)
	return err
}

func message(p, oob []byte) (unix.Iovec, unix.Msghdr) {
	return unix.Iovec{Base: unsafe.SliceData(p), Len: uint64(len(p))},
		unix.Msghdr{Iovlen: 1, Control: unsafe.SliceData(oob), Controllen: uint64(len(oob))}
}

func onMessage(trap uintptr, fd int, msg *unix.Msghdr, flags int) (int, error) {
	return onFD(trap, fd, unsafe.Pointer(msg), flags, 0)
}
