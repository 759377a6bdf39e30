package agentclient

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// serveConnects starts a VMM that accepts every connection, reads only the line CONNECT, and keeps the connection.
func serveConnects(t *testing.T) (path string, conns <-chan net.Conn) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "v.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	accepted := make(chan net.Conn, 2*maxHeld)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			line := make([]byte, len("CONNECT 49983\n"))
			if _, err := c.Read(line); err != nil {
				t.Error(err)
			}
			fmt.Fprintf(c, "OK 1\n")
			accepted <- c
		}
	}()
	return path, accepted
}

// If a VMM does not read the data of connections that the daemon has closed, the VMM can still hold
// only a limited part of the daemon's memory. Connections to ports of the guest, where strangers
// may connect, are counted apart from connections to its agent.
func TestVMMThatDoesNotRead(t *testing.T) {
	for _, ports := range [][2]uint32{{agentproto.EnvdPort, agentproto.DialPort},
		{agentproto.DialPort, agentproto.EnvdPort}} {
		t.Run(fmt.Sprint(ports[0]), func(t *testing.T) { testUnread(t, ports[0], ports[1]) })
	}
}

func testUnread(t *testing.T, port, other uint32) {
	path, conns := serveConnects(t)
	dial := DialUnix(path)
	var held []net.Conn
	for range maxHeld {
		c, err := dial(t.Context(), port)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "data\n")
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a second close: %v", err)
		}
		held = append(held, <-conns)
	}
	if c, err := dial(t.Context(), other); err != nil {
		t.Errorf("a connection to port %d: %v", other, err)
	} else {
		c.Close()
	}
	_, err := dial(t.Context(), port)
	if e, ok := errors.AsType[*Error](err); !ok || e.Code != CodeUnavailable {
		t.Fatalf("a connection beyond the limit: %v", err)
	}
	if line, err := bufio.NewReader(held[0]).ReadString('\n'); line != "data\n" || err != nil {
		t.Errorf("the guest reads %q, %v", line, err)
	}
	c, err := dial(t.Context(), port)
	if err != nil {
		t.Fatalf("after the guest has read the data of one connection: %v", err)
	}
	c.Close()
}

// Open connections count like closed connections with unread data. If their guests do not read,
// many open connections can become such closed connections. The number of connections is limited
// for each owner and for all owners together. Even when one of these limits is reached, a guest or
// an owner with few connections can open more.
func TestConnectionsAreLimited(t *testing.T) {
	var owners Owners
	var guests []*guestConns
	// fill takes connections of an owner's guests, as if each guest received many requests at once.
	fill := func(owner string) (n int) {
		for range 3 * maxAll / 240 {
			g := &guestConns{owners: &owners, owner: owner}
			for range 240 {
				if g.take() {
					n++
				}
			}
			guests = append(guests, g)
		}
		return n
	}
	const few = 3 * maxAll / 240 * fewGuest // number of connections that guests can have above the other limits
	if n := fill("greedy"); n < maxOwner || n > maxOwner+few {
		t.Errorf("one owner has %d connections, the limit is %d", n, maxOwner)
	}
	if n := fill("second"); n < maxOwner-few || n > maxOwner+few {
		t.Errorf("a second owner has %d connections", n)
	}
	if n := fill("third"); n < fewOwner || n > fewOwner+few {
		t.Errorf("a third owner has %d connections, want %d and %d for each guest", n, fewOwner, fewGuest)
	}

	path, conns := serveConnects(t)
	dial := owners.DialUnix("greedy", path)
	open := func() net.Conn {
		t.Helper()
		c, err := dial(t.Context(), agentproto.EnvdPort)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	var ours, theirs []net.Conn
	for range fewGuest {
		ours = append(ours, open())
		theirs = append(theirs, <-conns)
	}
	refused := func(when string) {
		t.Helper()
		_, err := dial(t.Context(), agentproto.EnvdPort)
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != CodeUnavailable {
			t.Errorf("%s: %v", when, err)
		}
	}
	refused("with open connections")
	ours[0].Close() // this connection has carried no data
	ours[0] = open()
	<-conns
	fmt.Fprintf(ours[1], "data\n")
	ours[1].Close()
	refused("with a connection whose data the guest has not read")
	theirs[1].Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := dial(t.Context(), agentproto.EnvdPort); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a connection that the guest has closed still counts")
		}
	}
	if _, err := (owners.DialUnix("greedy", path+"x"))(t.Context(), agentproto.EnvdPort); err == nil {
		t.Error("a connection without a VMM")
	}
	for _, g := range guests {
		for g.n > 0 {
			g.give()
		}
	}
	if owners.all != fewGuest || len(owners.of) != 1 {
		t.Errorf("%d connections of %d owners are counted at the end", owners.all, len(owners.of))
	}
}

// A closed connection is not counted if it carried no data, or if the guest has read its data.
func TestClosedConnectionsAreNotCounted(t *testing.T) {
	path, conns := serveConnects(t)
	dial := DialUnix(path)
	for i := range 2 * maxHeld {
		c, err := dial(t.Context(), agentproto.EnvdPort)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		guest := <-conns
		if i%2 == 0 {
			fmt.Fprintf(c, "data\n")
			guest.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := bufio.NewReader(guest).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		c.Close()
		if _, err := guest.Read(make([]byte, 1)); err == nil {
			t.Fatal("the guest's end of a closed connection can still be read")
		}
	}
}
