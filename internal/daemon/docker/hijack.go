package docker

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/agentclient"
)

// Content types of the output of a process: as the process writes it, or in frames that name its
// stream.
const (
	rawStream         = "application/vnd.docker.raw-stream"
	multiplexedStream = "application/vnd.docker.multiplexed-stream"
)

// streamType returns the type of an answer with the output of a process.
func streamType(r *http.Request, tty bool) string {
	if tty || versionOf(r) < multiplexed {
		return rawStream
	}
	return multiplexedStream
}

// stream is a client's connection that carries the output and input of a process. It was taken over
// from net/http.
type stream struct {
	conn net.Conn
	in   *bufio.Reader
	tty  bool          // output is not divided into frames
	idle time.Duration // maximum time of a write
}

// hijack takes over the connection of a request, and sends the beginning of the answer. If the
// client wants to upgrade the connection, the status is 101. If not, the status is 200.
func (s *Server) hijack(w http.ResponseWriter, r *http.Request, tty bool) (*stream, error) {
	header := "HTTP/1.1 200 OK\r\n"
	if r.Header.Get("Upgrade") != "" {
		header = "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
	}
	header += "Content-Type: " + streamType(r, tty) + "\r\nApi-Version: " + w.Header().Get("Api-Version") + "\r\n\r\n"
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, face.BadRequest("a stream needs HTTP/1.1: %v", err)
	}
	t := &stream{conn: conn, in: buf.Reader, tty: tty, idle: s.Face.Limits.Idle}
	_ = conn.SetDeadline(time.Time{}) // connections of some tests have no deadlines
	if _, err := t.send([]byte(header)); err != nil {
		conn.Close()
		return nil, err
	}
	t.untilRead()
	return t, nil
}

// untilRead waits until the client has read all bytes that were sent, but only for a limited time.
// docker-py loses output that arrives together with the header: it reads the header through a
// buffer, and the output without the buffer. Docker's daemon starts processes so slowly that this
// does not happen.
func (t *stream) untilRead() {
	poll(func() bool {
		unread := 0
		err := control(t.conn, func(fd int) (err error) {
			unread, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ)
			return err
		})
		return err != nil || unread == 0
	})
}

// poll calls done() until it returns true, or until a time limit. The interval grows. So even many
// clients that read nothing take little processor time.
func poll(done func() bool) {
	const limit, first, last = 10 * time.Second, 200 * time.Microsecond, 100 * time.Millisecond
	begun, interval := time.Now(), first
	for !done() && time.Since(begun) < limit {
		time.Sleep(interval)
		interval = min(2*interval, last)
	}
}

// control calls f with the descriptor of a connection.
func control(conn net.Conn, f func(fd int) error) error {
	for {
		inner, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = inner.NetConn()
	}
	sys, ok := conn.(syscall.Conn)
	if !ok {
		return errors.ErrUnsupported
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = f(int(fd)) })
	return errors.Join(err, failed)
}

func (t *stream) send(p []byte) (int, error) {
	_ = t.conn.SetWriteDeadline(time.Now().Add(t.idle))
	return t.conn.Write(p)
}

// output sends output of a process.
func (t *stream) output(from agentclient.Stream, p []byte) error {
	if !t.tty {
		p = frame(from, p)
	}
	_, err := t.send(p)
	return err
}

// frame returns output with the header that names its stream.
func frame(from agentclient.Stream, p []byte) []byte {
	out := make([]byte, 8, 8+len(p))
	out[0] = 1
	if from == agentclient.Stderr {
		out[0] = 2
	}
	binary.BigEndian.PutUint32(out[4:], uint32(len(p)))
	return append(out, p...)
}

// hangUpInterval is how often whileConnected checks the connection.
const hangUpInterval = 2 * time.Second

// whileConnected returns a context that ends when the client has closed the connection. A client
// that has only ended its input still receives output. The end of the context ends reads and writes
// that wait for the client.
func (t *stream) whileConnected(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(ctx, func() { _ = t.conn.SetDeadline(time.Now()) }) // fails only if the connection is closed
	go func() {
		tick := time.NewTicker(hangUpInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if hungUp(t.conn) {
				cancel()
				return
			}
		}
	}()
	return ctx, cancel
}

// hungUp reports whether the client has closed its connection over a unix socket in both
// directions.
func hungUp(conn net.Conn) bool {
	var events int16
	err := control(conn, func(fd int) error {
		poll := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(poll, 0)
		events = poll[0].Revents
		return err
	})
	return events&(unix.POLLHUP|unix.POLLERR) != 0 || errors.Is(err, net.ErrClosed)
}

// errDetached is the error of the input of a client that has typed the keys to detach from a
// terminal.
var errDetached = errors.New("the client detaches")

// inputChunk is how much input is sent to a process at once, in bytes.
const inputChunk = 64 << 10

// input passes the client's input to a process until the client's input ends. If closes is true and
// there is no terminal, it then closes the input of the process. If the process has closed its
// input, the rest of the client's input is dropped. The error is errDetached if the client types
// the keys that detach it from a terminal.
func (t *stream) input(ctx context.Context, p *process, closes bool) error {
	keys, closed := detachKeys{on: t.tty}, false
	for buf := make([]byte, inputChunk); ; {
		n, err := t.in.Read(buf)
		text, left := keys.filter(buf[:n])
		if len(text) > 0 && !closed {
			failed := p.use(ctx, func(ctx context.Context, ap *agentclient.Process) error { return ap.Input(ctx, text) })
			closed = failed != nil
		}
		switch {
		case left:
			return errDetached
		case err != nil && closes && !t.tty:
			return p.use(ctx, func(ctx context.Context, ap *agentclient.Process) error { return ap.CloseStdin(ctx) })
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// detachKeys finds Ctrl-P Ctrl-Q in the input of a terminal.
type detachKeys struct {
	on   bool
	held bool // Ctrl-P was read and not yet passed on
}

const (
	ctrlP = 0x10
	ctrlQ = 0x11
)

// filter returns the input for the process, and whether the client detaches.
func (k *detachKeys) filter(p []byte) (out []byte, left bool) {
	if !k.on {
		return p, false
	}
	for _, b := range p {
		if k.held {
			k.held = false
			if b == ctrlQ {
				return out, true
			}
			out = append(out, ctrlP)
		}
		if b == ctrlP {
			k.held = true
			continue
		}
		out = append(out, b)
	}
	return out, false
}

// checkDetachKeys refuses keys other than Docker's default.
func checkDetachKeys(keys string) error {
	switch strings.ReplaceAll(strings.ToLower(keys), " ", "") {
	case "", "ctrl-p,ctrl-q":
		return nil
	}
	return unsupported("detachKeys", "use the default, ctrl-p,ctrl-q")
}
