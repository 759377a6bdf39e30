// Package ctlsock sends and receives the messages of vmmproto, netproto and sshproto, together with
// file descriptors, on SOCK_SEQPACKET unix sockets.
//
// It defines the framing: a message is one packet, which consists of one byte for the message's
// kind, followed by the body. The package does not know the individual messages.
package ctlsock

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/rawcall"
)

// MaxMessage bounds one message, in bytes. The longest message is a Restore with the maximum number
// of extents.
const MaxMessage = 1 << 20

// MaxFDs is the maximum number of descriptors in one message (Linux's SCM_MAX_FD).
const MaxFDs = 253

// Conn is one end of a control connection. One goroutine may receive while other goroutines send.
// After Close, no method uses the descriptor, because its number may belong to another file by
// then.
type Conn struct {
	file *os.File
	raw  syscall.RawConn
	most int // maximum length of a message, including its kind, in bytes
	buf  []byte
	oob  []byte
}

// newConn takes ownership of fd, a connected SOCK_SEQPACKET socket.
func newConn(fd int) (*Conn, error) {
	// Make the send buffer large enough for the largest message. The kernel doubles the size for
	// its own bookkeeping. Without CAP_NET_ADMIN, it limits the size to net.core.wmem_max, commonly
	// 208 KiB. Messages above about 400 KiB then cannot be sent.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, MaxMessage) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, MaxMessage)
	}
	return wrap(fd, MaxMessage)
}

// Open takes ownership of fd, an end of a Pair that another process has made. The maximum length of
// a message must be the same as in the call of Pair.
func Open(fd, most int) (*Conn, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("open a control socket: %w", err), unix.Close(fd))
	}
	return wrap(fd, most)
}

// wrap takes ownership of fd, which is in non-blocking mode.
func wrap(fd, most int) (*Conn, error) {
	file := os.NewFile(uintptr(fd), "control socket")
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Conn{file: file, raw: raw, most: most}, nil
}

// Pair returns the two ends of a connection. A message may have at most the given number of bytes.
// The other process passes its end to Open. In the kernel, each direction has room for two messages
// of the maximum length.
func Pair(most int) (ours *Conn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "control socket")
	for _, fd := range fds {
		err = cmp.Or(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, most)) // the kernel doubles the size
	}
	if err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[0]), theirs.Close())
	}
	if ours, err = wrap(fds[0], most); err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return ours, theirs, nil
}

// Backlog is the number of connections that may wait until a listener accepts them. If a VMM hangs,
// each daemon that tries to take it over adds a connection. With a small backlog, a few restarts of
// the daemon would make the VMM unreachable.
const Backlog = 512

// Listen makes a listening socket at path.
func Listen(path string) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("create control socket: %w", err)
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, Backlog)); err != nil {
		return -1, errors.Join(fmt.Errorf("listen on control socket %s: %w", path, err), unix.Close(fd))
	}
	return fd, nil
}

// Dial connects to the socket at path. If the listener's backlog is full, it returns an error
// instead of waiting. The connection uses Go's poller for receiving, because a blocking system call
// would keep a processor of the scheduler busy until the runtime notices. The runtime takes up to
// 20 ms to notice.
func Dial(path string) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("create control socket: %w", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to control socket %s: %w", path, err), unix.Close(fd))
	}
	return newConn(fd)
}

// acceptPause is the pause after which Accept tries again.
const acceptPause = 10 * time.Millisecond

// Accept waits for the next connection of a listening socket. The connection receives messages as
// described at Dial. If there are not enough descriptors or memory for the connection, Accept tries
// again after a pause: its caller has sandboxes, and a temporary shortage must not make the caller
// exit.
func Accept(listener int) (*Conn, error) {
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		switch err {
		case nil:
			return newConn(fd)
		case unix.EINTR, unix.ECONNABORTED:
		case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
			time.Sleep(acceptPause)
		default:
			return nil, fmt.Errorf("accept control connection: %w", err)
		}
	}
}

// Shutdown makes Receive return io.EOF on both ends. Receive first returns the messages that were
// sent before the Shutdown. Later calls of Send fail on both ends.
func (c *Conn) Shutdown() {
	_ = c.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }) // fails only if c is closed
}

// Close ends the connection. Further calls of Close do nothing.
func (c *Conn) Close() error {
	if err := c.file.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// Send sends one message and copies of the descriptors fds. If the socket is full because the other
// end has not read earlier messages, Send waits.
func (c *Conn) Send(kind codec.Kind, body []byte, fds ...int) error {
	return c.send(true, kind, body, fds)
}

// SendNow is like Send, but returns unix.EAGAIN if the socket is full.
func (c *Conn) SendNow(kind codec.Kind, body []byte, fds ...int) error {
	return c.send(false, kind, body, fds)
}

func (c *Conn) send(wait bool, kind codec.Kind, body []byte, fds []int) error {
	if len(body)+1 > c.most || len(fds) > MaxFDs {
		return fmt.Errorf("control message of %d bytes and %d descriptors is too large", len(body), len(fds))
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	packet := append([]byte{byte(kind)}, body...)
	var err error
	lost := c.raw.Write(func(fd uintptr) bool {
		err = rawcall.SendPacket(int(fd), packet, oob)
		return !errors.Is(err, unix.EAGAIN) || !wait
	})
	if err = cmp.Or(lost, err); err != nil {
		return fmt.Errorf("send control message: %w", err)
	}
	return nil
}

// Packet returns the packet that Send would send for a message without descriptors, and the
// descriptor of the socket. It is for a thread that cannot call Send, and therefore sends the
// packet itself. The connection must not be closed before the packet is sent.
func (c *Conn) Packet(kind codec.Kind, body []byte) (fd int, packet []byte, err error) {
	err = c.raw.Control(func(n uintptr) { fd = int(n) })
	return fd, append([]byte{byte(kind)}, body...), err
}

// ErrFDsLost means that a message was received without its descriptors, because this process cannot
// open more descriptors.
var ErrFDsLost = errors.New("the descriptors of a message were lost: this process has too many open files")

// Receive waits for one message. The caller must close the descriptors. The body is valid until the
// next call. At the end of the connection, Receive returns io.EOF. If the error is ErrFDsLost,
// Receive also returns the message, and the connection can still be used.
func (c *Conn) Receive() (kind codec.Kind, body []byte, fds []int, err error) {
	lost := c.raw.Read(func(fd uintptr) bool {
		body, fds, err = c.receive(int(fd))
		return !errors.Is(err, unix.EAGAIN)
	})
	if err = cmp.Or(lost, err); err != nil && !errors.Is(err, ErrFDsLost) {
		if !errors.Is(err, io.EOF) {
			err = fmt.Errorf("receive control message: %w", err)
		}
		return 0, nil, nil, err
	}
	return codec.Kind(body[0]), body[1:], fds, err
}

// keptBuffer is the largest buffer, in bytes, that a connection keeps while it waits for a message.
// Messages of a sandbox in use are smaller.
const keptBuffer = 64 << 10

// receive receives one packet. An empty packet is the end of the connection.
func (c *Conn) receive(fd int) (packet []byte, fds []int, err error) {
	if cap(c.buf) > keptBuffer {
		c.buf = nil
	}
	// Ask for the length first, so that the buffer grows only in a process that receives large
	// messages.
	n, err := rawcall.PacketLength(fd)
	switch {
	case err != nil:
		return nil, nil, err
	case n == 0:
		return nil, nil, io.EOF
	case n > c.most:
		return nil, nil, fmt.Errorf("%d bytes, at most %d", n, c.most)
	}
	if cap(c.buf) < n {
		c.buf = make([]byte, n)
	}
	if c.oob == nil {
		c.oob = make([]byte, unix.CmsgSpace(MaxFDs*4))
	}
	n, oobn, flags, err := rawcall.ReceivePacket(fd, c.buf[:cap(c.buf)], c.oob)
	if err != nil {
		return nil, nil, err
	}
	fds, err = parseFDs(c.oob[:oobn])
	if err == nil && flags&unix.MSG_TRUNC != 0 {
		err = errors.New("it was truncated")
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	// oob has room for all descriptors of a message, so MSG_CTRUNC means that some could not be
	// opened
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		CloseAll(fds)
		return c.buf[:n], nil, ErrFDsLost
	}
	if err != nil {
		CloseAll(fds)
		return nil, nil, err
	}
	return c.buf[:n], fds, nil
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

// CloseAll closes descriptors that no caller has taken.
func CloseAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
