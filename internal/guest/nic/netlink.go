package nic

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// bufferBytes is the size of a buffer for one datagram of the kernel. A datagram is never larger
// than a page or the previous read, whichever of the two is larger.
const bufferBytes = 4096

// netlink is a socket for one request at a time. It blocks in the kernel and allocates nothing.
type netlink struct {
	fd  int
	seq uint32
	buf [bufferBytes]byte
}

func openNetlink(protocol int) (*netlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return &netlink{fd: fd}, nil
}

func (n *netlink) close() { _ = unix.Close(n.fd) }

// header writes a struct nlmsghdr at the beginning of p. The rest of p already contains the
// request.
func (n *netlink) header(p []byte, kind, flags uint16) {
	n.seq++
	ne := binary.NativeEndian
	ne.PutUint32(p[0:], uint32(len(p)))
	ne.PutUint16(p[4:], kind)
	ne.PutUint16(p[6:], unix.NLM_F_REQUEST|flags)
	ne.PutUint32(p[8:], n.seq)
	ne.PutUint32(p[12:], 0) // sender, which the kernel fills in
}

// call sends the request p, which begins with room for a header, and calls got(message) for each
// message of the answer. It stops if the kernel answers with an error.
func (n *netlink) call(p []byte, kind, flags uint16, got func(message []byte)) error {
	n.header(p, kind, flags)
	if _, err := unix.Write(n.fd, p); err != nil {
		return fmt.Errorf("netlink request: %w", err)
	}
	for {
		k, err := unix.Read(n.fd, n.buf[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("netlink answer: %w", err)
		}
		if done, err := n.messages(n.buf[:k], got); done || err != nil {
			return err
		}
	}
}

var errShort = errors.New("netlink answer: truncated")

// messages calls got(message) for each message of a datagram, and reports whether the datagram ends
// the answer.
func (n *netlink) messages(p []byte, got func(message []byte)) (done bool, err error) {
	ne := binary.NativeEndian
	for len(p) > 0 {
		if len(p) < unix.SizeofNlMsghdr {
			return false, errShort
		}
		size := int(ne.Uint32(p))
		if size < unix.SizeofNlMsghdr || size > len(p) {
			return false, errShort
		}
		body, kind, seq := p[unix.SizeofNlMsghdr:size], ne.Uint16(p[4:]), ne.Uint32(p[8:])
		p = p[min(len(p), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
		switch {
		case seq != n.seq: // the message belongs to an earlier request that was cancelled
		case kind == unix.NLMSG_DONE:
			return true, nil
		case kind == unix.NLMSG_ERROR:
			if len(body) < 4 {
				return false, errShort
			}
			if errno := -int32(ne.Uint32(body)); errno != 0 {
				return true, unix.Errno(errno)
			}
			return true, nil
		default:
			got(body)
		}
	}
	return false, nil
}
