package vsock

import (
	"bytes"
	"errors"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/rawcall"
	"github.com/forkd/forkd/internal/vmm/virtio"
)

const (
	// firstHostPort is the first port for host clients. Lower ports are free for services of the
	// host.
	firstHostPort = 1 << 30
	lastHostPort  = 1<<31 - 1

	// maxLine is the maximum length of a client's first line, in bytes. The longest valid line is
	// "CONNECT 4294967295\n".
	maxLine = 32

	// maxAccepts is the maximum number of clients that the device accepts before it does other
	// work.
	maxAccepts = 16
)

// serveHost is the device's goroutine. It waits for events of host sockets and handles them.
func (d *Device) serveHost(t virtio.Transport) {
	defer close(d.done)
	for {
		events, err := d.poll.Wait()
		if err != nil {
			return // the poller is closed
		}
		if !t.Enter() {
			continue // the device was reset after the event
		}
		if err := d.handle(events); err != nil {
			t.Fail(err)
		}
		t.Leave()
	}
}

// handle handles events of host sockets. It stops when a pause waits. The poller then reports the
// remaining events again.
func (d *Device) handle(events []unix.EpollEvent) error {
	for i := range events {
		if d.transport.Wanted() {
			break
		}
		ev := &events[i]
		if int(ev.Fd) == d.lfd {
			if err := d.accept(); err != nil {
				return err
			}
			continue
		}
		// The connection of the event may have been closed since, and a new one may have its
		// descriptor. The event can say that the old client has hung up, so it must not count for
		// the new one.
		if c := d.byFD[ev.Fd]; c != nil && c.tag == ev.Pad {
			if err := d.hostEvent(c, ev.Events); err != nil {
				return err
			}
		}
	}
	return d.signal()
}

func (d *Device) hostEvent(c *conn, events uint32) error {
	const hangUp = unix.EPOLLHUP | unix.EPOLLERR
	if c.state == stateHandshake {
		return d.handshake(c)
	}
	if len(c.pending) > 0 && events&(unix.EPOLLOUT|hangUp) != 0 {
		if err := d.drain(c); err != nil || c.fd < 0 {
			return err
		}
	}
	if events&hangUp != 0 {
		switch {
		case c.state == stateConnecting:
			return d.drop(c) // the client has hung up
		case c.hostEOF:
			return d.hostGone(c)
		}
		if !c.hungUp {
			c.hungUp, c.before = true, c.sent
		}
	}
	if err := d.pump(c); err != nil {
		return err
	}
	if c.hungUp && c.fd >= 0 { // the guest has no room for the rest of the data
		d.checkLater()
	}
	return nil
}

// accept accepts new clients.
func (d *Device) accept() error {
	if !d.listening {
		return nil // the device was restored after the event
	}
	for range maxAccepts {
		fd, err := rawcall.Accept(d.lfd, unix.SOCK_NONBLOCK)
		if errors.Is(err, unix.ECONNABORTED) {
			continue
		}
		if err != nil {
			return nil
		}
		if !d.roomForConn() {
			_ = rawcall.Close(fd)
			continue
		}
		c := d.newConn(fd)
		// Usually the client's first line has already arrived. If not, handshake makes the poller
		// wait for the line.
		if err := d.handshake(c); err != nil {
			return err
		}
	}
	return nil
}

// newConn adds a connection with the given socket of the host, in stateHandshake.
func (d *Device) newConn(fd int) *conn {
	c := &conn{fd: fd, tag: d.nextTag}
	d.nextTag++
	d.byFD[int32(fd)] = c
	return c
}

// roomForConn reports whether another connection may be opened. If maxConns is reached, roomForConn
// removes a connection that the host has closed and the guest has not closed yet.
func (d *Device) roomForConn() bool {
	if len(d.conns)+len(d.byFD) < maxConns {
		return true // the sum counts most connections twice, because they are in both maps
	}
	n := len(d.byFD)
	var lingering *conn
	for _, c := range d.conns {
		if c.state == stateClosing {
			n++
			lingering = c
		}
	}
	if n >= maxConns && lingering != nil {
		d.remove(lingering)
		n--
	}
	return n < maxConns
}

// handshake reads the client's first line and sends a connection request to the guest. It reads no
// byte after the line, because those bytes belong to the stream.
func (d *Device) handshake(c *conn) error {
	var b [maxLine]byte
	n, err := rawcall.Peek(c.fd, b[:maxLine-len(c.line)])
	if errors.Is(err, unix.EAGAIN) {
		d.arm(c)
		return nil
	}
	if err != nil || n == 0 {
		d.remove(c)
		return nil
	}
	end := bytes.IndexByte(b[:n], '\n')
	if end >= 0 {
		n = end + 1
	}
	if _, err := rawcall.Read(c.fd, b[:n]); err != nil {
		d.remove(c)
		return nil
	}
	c.line = append(c.line, b[:n]...)
	if end < 0 {
		if len(c.line) >= maxLine {
			d.remove(c)
			return nil
		}
		d.arm(c)
		return nil
	}
	port, ok := parseConnect(c.line)
	if !ok {
		d.remove(c)
		return nil
	}
	c.line = nil
	c.key = connKey{host: d.freePort(port), guest: port}
	c.state = stateConnecting
	d.conns[c.key] = c
	if err := d.owe(c, oweRequest); err != nil {
		return err
	}
	d.arm(c) // to notice a client that hangs up before the guest answers
	return nil
}

// freePort returns a free host port: no connection to the given guest port uses it.
func (d *Device) freePort(guest uint32) uint32 {
	for {
		port := d.nextPort
		if d.nextPort++; d.nextPort > lastHostPort {
			d.nextPort = firstHostPort
		}
		if d.conns[connKey{host: port, guest: guest}] == nil {
			return port
		}
	}
}

// parseConnect returns the port of a "CONNECT <port>\n" line.
func parseConnect(line []byte) (port uint32, ok bool) {
	digits, ok := bytes.CutPrefix(bytes.TrimSuffix(line, []byte("\n")), []byte("CONNECT "))
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(string(digits), 10, 32)
	return uint32(n), err == nil
}

// appendOK appends the line that tells a client that the guest has accepted the connection.
func appendOK(b []byte, port uint32) []byte {
	return append(strconv.AppendUint(append(b, "OK "...), uint64(port), 10), '\n')
}

// readv reads into the given views, which are not empty.
func readv(fd int, views [][]byte) (n int, err error) {
	for {
		if len(views) == 1 {
			n, err = rawcall.Read(fd, views[0])
		} else {
			n, err = unix.Readv(fd, views)
		}
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// writev writes as much of the given views as the socket accepts.
func writev(fd int, views [][]byte) (n int, err error) {
	for {
		switch len(views) {
		case 0:
			return 0, nil
		case 1:
			n, err = rawcall.Write(fd, views[0])
		default:
			n, err = unix.Writev(fd, views)
		}
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}
