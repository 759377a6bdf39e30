package agentclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/linger"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// maxHandshake is the maximum length of the VMM's answer to CONNECT, in bytes. The answer is "OK "
// and a 32-bit number, or a short error.
const maxHandshake = 128

// sendBuffer is the size of the send buffer of a connection to a guest, in bytes. The kernel doubles
// it. Data that a VMM has not read counts as memory of the daemon.
const sendBuffer = 32 << 10

// Limits on closed connections whose data a VMM has not read.
const (
	// maxHeld is the limit for connections to the ports of one guest. Connections to its agent have a
	// separate limit of the same size. So strangers who connect to a server that does not read cannot
	// keep the owner from commands and files.
	maxHeld = 64
	// If there are manyHeld such connections of one owner's guests, the limit for each of these guests
	// is fewHeld instead.
	manyHeld = 1024
	fewHeld  = 4
)

// Owners counts closed connections whose data VMMs have not read, for each owner of sandboxes. The
// zero value has none. Its methods may be called concurrently.
type Owners struct {
	mu   sync.Mutex
	held map[string]*atomic.Int64
}

func (o *Owners) of(owner string) *atomic.Int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held == nil {
		o.held = make(map[string]*atomic.Int64)
	}
	if o.held[owner] == nil {
		o.held[owner] = &atomic.Int64{}
	}
	return o.held[owner]
}

// DialUnix is like the function DialUnix, for the VMM of a sandbox of the given owner.
func (o *Owners) DialUnix(owner, path string) DialFunc { return dialUnix(path, o.of(owner)) }

// limit returns the limit that now applies to each guest of an owner: maxHeld or fewHeld.
func limit(held *atomic.Int64) int {
	if held.Load() >= manyHeld {
		return fewHeld
	}
	return maxHeld
}

// DialUnix returns a dial function for the vsock unix socket of a VMM. It sends "CONNECT <port>\n"
// and expects "OK <number>\n", as Firecracker's vsock device does. If the VMM has not read the data
// of maxHeld closed connections, because its guest does not read or because the VMM is hostile, the
// function returns an Error with CodeUnavailable.
func DialUnix(path string) DialFunc { return dialUnix(path, &atomic.Int64{}) }

// dialUnix is DialUnix, with the counter of the owner's closed connections.
func dialUnix(path string, total *atomic.Int64) DialFunc {
	ports, agent := &linger.Set{Total: total}, &linger.Set{Total: total}
	return func(ctx context.Context, port uint32) (net.Conn, error) {
		closed := agent
		if port == agentproto.DialPort {
			closed = ports
		}
		if held := closed.Held(); held >= limit(total) {
			return nil, &Error{Op: fmt.Sprintf("dial guest port %d", port), Code: CodeUnavailable,
				Message: fmt.Sprintf("the guest has not read the data of %d ended connections", held)}
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", path)
		if err != nil {
			return nil, fmt.Errorf("dial guest port %d: %w", port, err)
		}
		s := &stream{UnixConn: conn.(*net.UnixConn), closed: closed}
		_ = s.SetWriteBuffer(sendBuffer) // after an error, the kernel's default is in force
		if err := handshake(ctx, s, port); err != nil {
			s.Close()
			return nil, fmt.Errorf("dial guest port %d: %w", port, err)
		}
		return s, nil
	}
}

// stream is a connection to a guest.
type stream struct {
	*net.UnixConn
	closed *linger.Set
	once   sync.Once
}

// Close closes the connection. The guest can still read the data that was sent to it.
func (c *stream) Close() error {
	err := net.ErrClosed
	c.once.Do(func() { err = c.closed.Close(c.UnixConn) })
	return err
}

func handshake(ctx context.Context, conn net.Conn, port uint32) error {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	_, err := fmt.Fprintf(conn, "CONNECT %d\n", port)
	var line string
	if err == nil {
		line, err = readHandshake(conn)
	}
	if !stop() {
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	if !strings.HasPrefix(line, "OK ") {
		return fmt.Errorf("the VMM refused: %q", line)
	}
	return nil
}

// readHandshake reads one line, byte by byte. The bytes after the line belong to the guest's
// stream, so readHandshake must not read them.
func readHandshake(conn net.Conn) (string, error) {
	var line []byte
	for one := make([]byte, 1); len(line) < maxHandshake; {
		if _, err := conn.Read(one); err != nil {
			return "", fmt.Errorf("handshake: %w", err)
		}
		if one[0] == '\n' {
			return string(line), nil
		}
		line = append(line, one[0])
	}
	return "", fmt.Errorf("handshake: no line within %d bytes", maxHandshake)
}

// IsBrokenOff reports whether err means that the peer of a connection is gone.
func IsBrokenOff(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}
