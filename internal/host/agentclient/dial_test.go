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

// If a VMM does not read the data of connections that the daemon has closed, it can hold only a
// limited part of the daemon's memory. Connections to ports of the guest, where strangers may
// connect, are counted apart from connections to its agent.
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

// If the guests of an owner hold many connections, each of them may hold fewer. Guests of other owners are not
// affected.
func TestManyHeldConnections(t *testing.T) {
	path, conns := serveConnects(t)
	var owners Owners
	owners.of("greedy").Add(manyHeld)
	for owner, want := range map[string]int{"greedy": fewHeld, "other": maxHeld} {
		dial, n := owners.DialUnix(owner, path), 0
		for ; n <= maxHeld; n++ {
			c, err := dial(t.Context(), agentproto.EnvdPort)
			if err != nil {
				break
			}
			fmt.Fprintf(c, "data\n")
			c.Close()
			<-conns
		}
		if n != want {
			t.Errorf("a guest of %s holds %d connections, want %d", owner, n, want)
		}
	}
}

// Connections that the guest has read, or that carried no data, are not counted.
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
