package agentclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
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

// Limits on connections to guests. A closed connection counts until the VMM has read its data. So a
// connection stands for up to 2 * sendBuffer bytes of the daemon's memory.
const (
	// maxHeld is the limit of closed connections to the ports of one guest. Connections to its
	// agent have a separate limit of the same size. So strangers who connect to a server that does
	// not read cannot block the owner's commands and file transfers.
	maxHeld = 64
	// maxOwner limits the connections to the guests of one owner, open and closed. The limits on
	// concurrent requests permit fewer open connections, so an owner reaches maxOwner only with
	// guests that do not read.
	maxOwner = 2048
	maxAll   = 4096 // limits the connections to all guests, open and closed
	// An owner with fewer than fewOwner connections gets another one even above maxAll. A guest
	// with fewer than fewGuest connections gets another one even above maxOwner and maxAll.
	fewOwner = 256
	fewGuest = 4
)

// Owners counts the connections to guests, for each owner of sandboxes. The zero value is ready to
// use. Its methods may be called concurrently.
type Owners struct {
	mu  sync.Mutex
	of  map[string]int
	all int
}

// The method DialUnix is like the function DialUnix, but counts the connections for the given owner
// of the sandbox.
func (o *Owners) DialUnix(owner, path string) DialFunc {
	guest := &guestConns{owners: o, owner: owner}
	ports, agent := &linger.Set{}, &linger.Set{}
	return func(ctx context.Context, port uint32) (net.Conn, error) {
		closed := agent
		if port == agentproto.DialPort {
			closed = ports
		}
		if held := closed.Held(); held >= maxHeld {
			return nil, &Error{Op: fmt.Sprintf("dial guest port %d", port), Code: CodeUnavailable,
				Message: fmt.Sprintf("the guest has not read the data of %d ended connections", held)}
		}
		if !guest.take() {
			return nil, &Error{Op: fmt.Sprintf("dial guest port %d", port), Code: CodeUnavailable,
				Message: "too many connections to guests are open, or were closed before the guests read all data"}
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", path)
		if err != nil {
			guest.give()
			return nil, fmt.Errorf("dial guest port %d: %w", port, err)
		}
		s := &stream{UnixConn: conn.(*net.UnixConn), closed: closed, guest: guest}
		_ = s.SetWriteBuffer(sendBuffer) // after an error, the kernel's default is in force
		if err := handshake(ctx, s, port); err != nil {
			s.Close()
			return nil, fmt.Errorf("dial guest port %d: %w", port, err)
		}
		return s, nil
	}
}

// guestConns counts the connections to one guest.
type guestConns struct {
	owners *Owners
	owner  string
	n      int // guarded by owners.mu
}

// take counts one more connection, or returns false if a limit is reached.
func (g *guestConns) take() bool {
	o := g.owners
	o.mu.Lock()
	defer o.mu.Unlock()
	own := o.of[g.owner]
	if g.n >= fewGuest && own >= fewOwner && (own >= maxOwner || o.all >= maxAll) {
		return false
	}
	g.countLocked(1)
	return true
}

func (g *guestConns) give() {
	g.owners.mu.Lock()
	defer g.owners.mu.Unlock()
	g.countLocked(-1)
}

func (g *guestConns) countLocked(n int) {
	o := g.owners
	if o.of == nil {
		o.of = make(map[string]int)
	}
	g.n += n
	o.all += n
	if o.of[g.owner] += n; o.of[g.owner] == 0 {
		delete(o.of, g.owner)
	}
}

// DialUnix returns a dial function for the vsock unix socket of a VMM. That function first sends
// "CONNECT <port>\n" and then expects "OK <number>\n", as Firecracker's vsock device does. If the
// guest does not read or the VMM is hostile, a limit on the number of connections may be reached.
// In this case, the dial function returns an Error with CodeUnavailable.
func DialUnix(path string) DialFunc { return new(Owners).DialUnix("", path) }

// stream is a connection to a guest.
type stream struct {
	*net.UnixConn
	closed *linger.Set
	guest  *guestConns
	once   sync.Once
}

// Close closes the connection. The guest can still read the data that was sent to it.
func (c *stream) Close() error {
	err := net.ErrClosed
	c.once.Do(func() { err = c.closed.Close(c.UnixConn, c.guest.give) })
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
