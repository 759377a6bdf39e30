package ctlsock

import (
	"errors"

	"golang.org/x/sys/unix"
)

// passRights is SO_PASSRIGHTS of include/uapi/asm-generic/socket.h.
const passRights = 83

// RefuseDescriptors makes the kernel refuse descriptors that a peer sends to a unix socket: the
// peer's sendmsg(2) fails with EPERM. A descriptor of a hostile peer is dangerous even if this
// process does not receive it, because the kernel closes it in this process when the message is read
// or dropped. That close waits for ever if the peer is in epoll_wait(2) for the file and does not
// answer the page faults of its buffer. Before Linux 6.16 RefuseDescriptors changes nothing.
func RefuseDescriptors(fd int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, passRights, 0)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return nil
	}
	return err
}
