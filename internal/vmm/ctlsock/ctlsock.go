// Package ctlsock sends and receives vmmproto messages with file descriptors on SOCK_SEQPACKET unix sockets.
//
// It knows the framing (one kind byte, then the body, one packet a message) and nothing of the messages.
package ctlsock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// MaxFDs is the most descriptors one message carries (Linux's SCM_MAX_FD).
const MaxFDs = 253

// Conn is one end of a control connection. One goroutine may receive while others send; it must have ended before
// Close. Sends and Shutdown after Close go nowhere, though the number of the descriptor may be another's by then.
type Conn struct {
	fd   int
	send sync.Mutex // one packet at a time, and Close
	buf  []byte
	oob  []byte

	mu     sync.Mutex // taken after send: Shutdown must not wait for a Send that it is to end
	closed bool
}

// New takes over fd, a connected SOCK_SEQPACKET socket in blocking mode.
func New(fd int) *Conn {
	// Room for the largest message; the kernel doubles the figure for its own bookkeeping. Without CAP_NET_ADMIN it
	// caps it at net.core.wmem_max, commonly 208 KiB: then only messages of up to about 400 KiB pass, and larger ones
	// fail to be sent.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, vmmproto.MaxMessage) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, vmmproto.MaxMessage)
	}
	return &Conn{fd: fd}
}

// Listen makes a listening socket at path.
func Listen(path string) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("create control socket: %w", err)
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 4)); err != nil {
		return -1, errors.Join(fmt.Errorf("listen on control socket %s: %w", path, err), unix.Close(fd))
	}
	return fd, nil
}

// Dial connects to the socket at path. It does not wait: a listener that has taken none of many connections is an error.
func Dial(path string) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("create control socket: %w", err)
	}
	if err := errors.Join(unix.Connect(fd, &unix.SockaddrUnix{Name: path}), unix.SetNonblock(fd, false)); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to control socket %s: %w", path, err), unix.Close(fd))
	}
	return New(fd), nil
}

// Accept takes the next connection from a listening socket.
func Accept(listener int) (*Conn, error) {
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			return New(fd), nil
		case unix.EINTR, unix.ECONNABORTED:
		default:
			return nil, fmt.Errorf("accept control connection: %w", err)
		}
	}
}

// Shutdown ends Receive calls on both ends; Close follows when nobody uses the connection any more.
func (c *Conn) Shutdown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
	}
}

// Close closes the connection, once.
func (c *Conn) Close() error {
	c.Shutdown()
	c.send.Lock()
	defer c.send.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return os.ErrClosed
	}
	c.closed = true
	return unix.Close(c.fd)
}

// Send sends one message and copies of fds.
func (c *Conn) Send(kind vmmproto.Kind, body []byte, fds ...int) error {
	if len(body)+1 > vmmproto.MaxMessage || len(fds) > MaxFDs {
		return fmt.Errorf("control message of %d bytes and %d descriptors is too large", len(body), len(fds))
	}
	c.send.Lock()
	defer c.send.Unlock()
	if c.closed { // set by a holder of send
		return fmt.Errorf("send control message: %w", os.ErrClosed)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	packet := append([]byte{byte(kind)}, body...)
	for {
		_, err := unix.SendmsgN(c.fd, packet, oob, nil, unix.MSG_NOSIGNAL)
		switch err {
		case nil:
			return nil
		case unix.EINTR:
		default:
			return fmt.Errorf("send control message: %w", err)
		}
	}
}

// Receive waits for one message. The descriptors become the caller's; the body is valid until the next call. At the
// end of the connection it returns io.EOF.
func (c *Conn) Receive() (kind vmmproto.Kind, body []byte, fds []int, err error) {
	n, err := c.packetSize()
	if err != nil {
		return 0, nil, nil, err
	}
	if cap(c.buf) < n {
		c.buf = make([]byte, n)
	}
	if c.oob == nil {
		c.oob = make([]byte, unix.CmsgSpace(MaxFDs*4))
	}
	for {
		n, oobn, flags, _, err := unix.Recvmsg(c.fd, c.buf[:cap(c.buf)], c.oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, nil, nil, fmt.Errorf("receive control message: %w", err)
		}
		fds, err := parseFDs(c.oob[:oobn])
		if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			err = errors.New("control message was truncated")
		}
		if err != nil || n == 0 {
			CloseAll(fds)
			return 0, nil, nil, errors.Join(err, io.EOF)
		}
		return vmmproto.Kind(c.buf[0]), c.buf[1:n], fds, nil
	}
}

// packetSize waits for a packet and returns its length, so that the buffer grows only for a process that really gets
// large messages.
func (c *Conn) packetSize() (int, error) {
	for {
		n, _, err := unix.Recvfrom(c.fd, nil, unix.MSG_PEEK|unix.MSG_TRUNC)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, fmt.Errorf("receive control message: %w", err)
		case n == 0:
			return 0, io.EOF
		case n > vmmproto.MaxMessage:
			return 0, fmt.Errorf("control message of %d bytes, at most %d", n, vmmproto.MaxMessage)
		default:
			return n, nil
		}
	}
}

func parseFDs(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("parse donated descriptors: %w", err)
	}
	var all []int
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return all, fmt.Errorf("parse donated descriptors: %w", err)
		}
		all = append(all, fds...)
	}
	return all, nil
}

// CloseAll closes descriptors that nobody took.
func CloseAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
