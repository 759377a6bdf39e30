package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// ports serves agentproto.DialPort. It connects streams from the host to TCP ports on the guest's
// loopback, and to no other address. Its memory is part of every guest, so it allocates nothing
// before the first stream, and an idle stream holds no buffer. Buffers are reused, because no
// garbage is collected below memoryLimit.
type ports struct {
	mu   sync.Mutex
	open int
	free [][]byte // unused buffers
}

// Limits of a stream, and the size of its buffers.
const (
	requestTimeout = 10 * time.Second // time limit for the host to send the port number
	bufferSize     = 32 << 10         // bytes per read
)

// serve accepts streams until the listener is closed.
func (p *ports) serve(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go p.serveConn(conn)
	}
}

// enter counts a new stream, and reports whether there is room for it.
func (p *ports) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == agentproto.MaxDialed {
		return false
	}
	p.open++
	return true
}

func (p *ports) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
}

func (p *ports) serveConn(conn net.Conn) {
	defer conn.Close()
	host, ok := conn.(halfConn)
	if !ok {
		return // cannot happen: the agent listens only on sockets
	}
	if !p.enter() {
		_, _ = conn.Write([]byte{byte(agentproto.DialBusy)}) // an error means that the host has gone
		return
	}
	defer p.leave()
	_ = conn.SetDeadline(time.Now().Add(requestTimeout))
	var request [agentproto.DialSize]byte
	if _, err := io.ReadFull(conn, request[:]); err != nil {
		return
	}
	guest, answer := dialLoopback(agentproto.ParseDial(request))
	if guest != nil {
		defer guest.Close()
	}
	if _, err := conn.Write([]byte{byte(answer)}); err != nil || guest == nil {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	p.join(host, guest)
}

// dialLoopback connects to a port of this machine, at 127.0.0.1 or ::1, whichever the server
// listens on.
func dialLoopback(port uint16) (halfConn, agentproto.DialAnswer) {
	if port == 0 {
		return nil, agentproto.DialRefused
	}
	answer := agentproto.DialRefused
	for _, host := range [...]string{"127.0.0.1", "::1"} {
		ctx, cancel := context.WithTimeout(context.Background(), agentproto.DialTimeout)
		d := net.Dialer{KeepAlive: -1} // keep-alive timers would wake an idle guest, and loopback loses no connections
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		cancel()
		if err == nil {
			return conn.(*net.TCPConn), agentproto.DialOK
		}
		if a := answerTo(err); a != agentproto.DialRefused && answer == agentproto.DialRefused {
			answer = a // this answer is more specific than the "refused" of the other address
		}
	}
	return nil, answer
}

// answerTo converts an error of a dial to the answer for the host. In a guest without IPv6, dialing
// ::1 fails with an error other than ECONNREFUSED.
func answerTo(err error) agentproto.DialAnswer {
	var timeout net.Error
	switch {
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EAFNOSUPPORT),
		errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.ECONNRESET):
		return agentproto.DialRefused
	case errors.As(err, &timeout) && timeout.Timeout():
		return agentproto.DialTimeOut
	}
	return agentproto.DialFailed
}

// halfConn is a stream socket whose directions can be closed separately.
type halfConn interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// goneInterval is how often a stream checks whether the host has closed its connection. The check
// is needed, because the stream receives the same event if the host has only finished sending. A
// server may then wait for ever or leave data unread, so that nothing else ends the stream. A
// server that has sent all its data is probed by keep-alive packets at the same interval, because
// no event reports that such a server closes its socket. The guest's kernel answers these packets
// until the server closes its socket, and for a minute afterwards.
const goneInterval = 10 * time.Second

// join carries bytes in both directions until both directions have ended or one direction has
// failed.
func (p *ports) join(host, guest halfConn) {
	toGuest, toHost, closed := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { toGuest <- p.pass(guest, host) }()
	go func() {
		toHost <- p.pass(host, guest)
		closed <- awaitClose(guest)
	}()
	watch := time.NewTicker(goneInterval)
	defer watch.Stop()
	for answering, left := true, 2; left > 0; {
		var err error
		select {
		case err = <-toGuest:
			left--
		case err = <-toHost:
			answering = false
			left--
		case err = <-closed:
		case <-watch.C:
			if answering && gone(host) { // skipped after the guest has sent all data: gone(host) would return true
				err = unix.EPIPE
			}
		}
		if err != nil {
			abort(guest)
			_ = host.Close() // makes the other direction fail at once
		}
	}
}

// awaitClose is called after a server has sent all its data. It waits until the server has also
// closed its socket, or until p.join closes the connection. It always returns an error, because the
// server will not read the data that the host still sends.
func awaitClose(guest halfConn) error {
	if tcp, ok := guest.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: goneInterval, Interval: goneInterval})
	}
	raw, err := guest.SyscallConn()
	if err != nil {
		return err
	}
	err = raw.Read(func(fd uintptr) bool {
		poll := [1]unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(poll[:], 0)
		return err == nil && poll[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return errors.Join(unix.EPIPE, err)
}

// abort closes a connection with a reset, so that the server does not take it for an orderly end.
func abort(guest halfConn) {
	if tcp, ok := guest.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = guest.Close()
}

// pass copies data from one connection to another until the data ends. Then it closes the second
// connection for writing.
func (p *ports) pass(to, from halfConn) error {
	raw, err := from.SyscallConn()
	if err != nil {
		return err
	}
	for {
		buf, n, err := p.read(raw)
		if n > 0 {
			_, err = to.Write(buf[:n])
		}
		p.giveBack(buf)
		if err != nil {
			return err
		}
		if n == 0 {
			return to.CloseWrite()
		}
	}
}

// read waits for data, and holds no buffer while it waits. It returns the data in a buffer that the
// caller must give back. At the end of the stream the result n is 0.
func (p *ports) read(raw syscall.RawConn) (buf []byte, n int, err error) {
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		if buf == nil {
			buf = p.take()
		}
		for {
			if n, failed = unix.Read(int(fd), buf); failed != unix.EINTR {
				break
			}
		}
		if failed == unix.EAGAIN {
			p.giveBack(buf)
			buf = nil
			return false
		}
		return true
	})
	return buf, max(n, 0), errors.Join(err, failed)
}

func (p *ports) take() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := len(p.free) - 1; last >= 0 {
		buf := p.free[last]
		p.free = p.free[:last]
		return buf
	}
	return make([]byte, bufferSize)
}

func (p *ports) giveBack(buf []byte) {
	if buf == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, buf)
}

// gone reports whether the peer has closed the stream. It returns false if the peer has only
// finished sending. The kernel refuses an empty message to the peer only after a close.
func gone(conn syscall.Conn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	var sent error
	if err := raw.Control(func(fd uintptr) {
		sent = unix.Send(int(fd), nil,
			unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	}); err != nil {
		return true
	}
	return sent != nil && sent != unix.EAGAIN && sent != unix.EINTR
}
