package vsock

import (
	"bytes"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
)

// leave makes a client leave while the guest has room for only a part of the client's data. Like
// the daemon, the client shuts its socket down but does not close it.
func (g *guest) leave(h *host, room uint32, data []byte) (c *net.UnixConn, req header) {
	g.t.Helper()
	c = h.connect(g.t, 80)
	req = g.expect(opRequest)
	accept := reply(req, opResponse)
	accept.bufAlloc = room
	g.send(accept, nil)
	if _, err := c.Write(data); err != nil {
		g.t.Fatal(err)
	}
	if h, got := g.next(); h.op != opRW || !bytes.Equal(got, data[:room]) {
		g.t.Fatalf("operation %d with %d bytes", h.op, len(got))
	}
	g.expect(opCreditRequest)
	if err := c.CloseWrite(); err != nil {
		g.t.Fatal(err)
	}
	if err := c.CloseRead(); err != nil {
		g.t.Fatal(err)
	}
	return c, req
}

// look calls f with the only connection that has a socket of the host.
func (g *guest) look(h *host, f func(c *conn)) {
	g.t.Helper()
	n := 0
	if err := g.tr.Exclusive(func() {
		if n = len(h.dev.byFD); n != 1 {
			return
		}
		for _, c := range h.dev.byFD {
			f(c)
		}
	}); err != nil {
		g.t.Fatal(err)
	}
	if n != 1 {
		g.t.Fatalf("%d connections", n)
	}
}

func (g *guest) awaitHangUp(h *host) {
	g.t.Helper()
	virtiotest.Eventually(g.t, "the device notices the hang-up", func() (hungUp bool) {
		g.look(h, func(c *conn) {
			// If the socket stayed in the poller, the poller would report it all the time.
			hungUp = c.hungUp && !c.armed
		})
		return hungUp
	})
}

// If a client leaves while the guest has no room for data, the guest can take the data later.
// Whenever the guest takes some data, its time limit begins again.
func TestGuestTakesDataOfAClientThatHasLeft(t *testing.T) {
	h := newHost(t)
	h.dev.checkTime = time.Hour // the test makes the checks
	g := start(t, h, newMem(t))
	data := []byte("0123456789")
	_, req := g.leave(h, 4, data)
	for taken := uint32(4); taken < 10; taken++ {
		g.awaitHangUp(h)
		for range maxIdle - 1 {
			g.look(h, func(*conn) {
				if h.dev.check == nil {
					t.Error("no check is due")
				}
				if err := h.dev.checkHungUp(); err != nil {
					t.Error(err)
				}
			})
		}
		update := reply(req, opCreditUpdate)
		update.bufAlloc, update.fwdCount = 1, taken
		g.send(update, nil)
		if h, got := g.next(); h.op != opRW || string(got) != string(data[taken]) {
			t.Fatalf("operation %d with %q, want %q", h.op, got, data[taken])
		}
		g.expect(opCreditRequest)
		g.look(h, func(c *conn) { // the check that sees that the guest has taken a byte
			if err := h.dev.checkHungUp(); err != nil || c.idle != 0 {
				t.Errorf("%d checks without progress, %v", c.idle, err)
			}
		})
	}
	update := reply(req, opCreditUpdate)
	update.fwdCount = 10
	g.send(update, nil)
	if h := g.expect(opShutdown); h.flags != shutdownBoth {
		t.Fatalf("flags %d", h.flags)
	}
}

// If a client leaves while the guest takes data, the device sets no timer. A timer would wake every
// sandbox some seconds after its last request.
func TestOrdinaryCloseSetsNoTimer(t *testing.T) {
	h := newHost(t)
	g := start(t, h, newMem(t))
	c := h.connect(t, 80)
	g.open(c, 80)
	if _, err := c.Write([]byte("data")); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if h, got := g.next(); h.op != opRW || string(got) != "data" {
		t.Fatalf("operation %d with %q", h.op, got)
	}
	if h := g.expect(opShutdown); h.flags != shutdownBoth {
		t.Fatalf("flags %d", h.flags)
	}
	if err := g.tr.Exclusive(func() {
		if h.dev.check != nil {
			t.Error("a check is due")
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// If a client leaves and the guest takes none of the client's data, the device closes the
// connection after some time. So a server that does not read cannot keep the client's data in
// memory, and the agent of the guest learns that the client has left.
func TestGuestDoesNotTakeDataOfAClientThatHasLeft(t *testing.T) {
	h := newHost(t)
	h.dev.checkTime = time.Millisecond
	g := start(t, h, newMem(t))
	c, req := g.leave(h, 1000, make([]byte, 2000))
	if h := g.expect(opShutdown); h.flags != shutdownBoth {
		t.Fatalf("flags %d", h.flags)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		if n, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); n != 0 || err != nil {
			t.Errorf("%d bytes of the client are held, %v", n, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	g.send(reply(req, opRST), nil)
	if err := g.tr.Exclusive(func() {
		if len(h.dev.conns) != 0 || len(h.dev.byFD) != 0 || h.dev.check != nil {
			t.Errorf("%d connections, %d sockets, check %v", len(h.dev.conns), len(h.dev.byFD), h.dev.check)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// A connection whose client stays is not closed, even if the guest takes nothing.
func TestGuestDoesNotTakeDataOfAClientThatStays(t *testing.T) {
	h := newHost(t)
	g := start(t, h, newMem(t))
	c := h.connect(t, 80)
	accept := reply(g.expect(opRequest), opResponse)
	accept.bufAlloc = 1000
	g.send(accept, nil)
	if _, err := c.Write(make([]byte, 2000)); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil { // the client still reads
		t.Fatal(err)
	}
	if h, got := g.next(); h.op != opRW || len(got) != 1000 {
		t.Fatalf("operation %d with %d bytes", h.op, len(got))
	}
	g.expect(opCreditRequest)
	for range 2 * maxIdle {
		g.look(h, func(c *conn) {
			if err := h.dev.checkHungUp(); err != nil || c.hungUp || !c.armed || c.fd < 0 {
				t.Errorf("connection %+v, %v", c, err)
			}
		})
	}
}

// An event can arrive after its connection was closed, and the next connection can have the same
// descriptor. The old client's hang-up then does not end the new connection.
func TestEventOfAnOldConnection(t *testing.T) {
	h := newHost(t)
	g := start(t, h, newMem(t))
	client := h.connect(t, 80)
	req := g.expect(opRequest)
	hangUp := func() {
		t.Helper()
		g.look(h, func(c *conn) {
			old := []unix.EpollEvent{{Events: unix.EPOLLHUP | unix.EPOLLIN, Fd: int32(c.fd), Pad: c.tag - 1}}
			if err := h.dev.handle(old); err != nil {
				t.Error(err)
			}
			if c.gone || c.hungUp {
				t.Errorf("an old event has ended a connection in state %d: %+v", c.state, c)
			}
		})
	}
	hangUp()
	g.send(reply(req, opResponse), nil)
	virtiotest.Eventually(t, "the connection is open", func() (open bool) {
		g.look(h, func(c *conn) { open = c.state == stateOpen })
		return open
	})
	hangUp()
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if h, got := g.next(); h.op != opRW || string(got) != "x" {
		t.Fatalf("operation %d with %q", h.op, got)
	}
}
