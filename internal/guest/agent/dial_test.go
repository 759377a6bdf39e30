package agent

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// server listens on a loopback address and calls f with every connection. It returns the port.
func server(t *testing.T, address string, f func(*net.TCPConn)) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("listen on %s: %v", address, err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); f(conn.(*net.TCPConn)) }()
		}
	}()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// unheard returns a port of 127.0.0.1 on which no program listens or can listen until the test
// ends.
func unheard(t *testing.T) uint16 {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return uint16(name.(*unix.SockaddrInet4).Port)
}

// summing reads its input to the end, and then sends a digest of the input. This works only if the
// two directions of a stream can end separately.
func summing(conn *net.TCPConn) {
	sum := sha256.New()
	if _, err := io.Copy(sum, conn); err == nil {
		conn.Write(sum.Sum(nil))
	}
}

func dial(t *testing.T, c *agentclient.Client, port uint16) agentclient.PortConn {
	t.Helper()
	s, err := c.DialPort(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestDialPortCarriesBothDirections(t *testing.T) {
	c := serve(t, nil)
	// The agent tries 127.0.0.1 first, where no program listens on the port of the second server.
	for _, address := range []string{"127.0.0.1:0", fmt.Sprintf("[::1]:%d", unheard(t))} {
		s := dial(t, c, server(t, address, summing))
		sent := make([]byte, 3<<20+7)
		rand.Read(sent)
		if _, err := s.Write(sent); err != nil {
			t.Fatal(err)
		}
		if err := s.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(s)
		if want := sha256.Sum256(sent); err != nil || string(got) != string(want[:]) {
			t.Errorf("%s: answered %x, %v", address, got, err)
		}
	}
}

func TestDialPortSaysWhyNot(t *testing.T) {
	c := serve(t, nil)
	free := server(t, "127.0.0.1:0", func(*net.TCPConn) {})
	var answer *agentclient.Error
	if _, err := c.DialPort(t.Context(), unheard(t)); !errors.As(err, &answer) || answer.Code != agentclient.CodeRefused {
		t.Errorf("a port that nobody listens on: %v", err)
	}
	for range agentproto.MaxDialed {
		dial(t, c, server(t, "127.0.0.1:0", func(conn *net.TCPConn) { io.Copy(io.Discard, conn) }))
	}
	if _, err := c.DialPort(t.Context(), free); !errors.As(err, &answer) || answer.Code != agentclient.CodeUnavailable {
		t.Errorf("one stream too many: %v", err)
	}
}

// A request without a port, or for port 0, gets no connection.
func TestDialPortWithoutAPort(t *testing.T) {
	d := listen(t, nil)
	conn, err := d(t.Context(), agentproto.DialPort)
	if err != nil {
		t.Fatal(err)
	}
	conn.Write([]byte{1})
	conn.Close()
	if conn, err = d(t.Context(), agentproto.DialPort); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Write([]byte{0, 0})
	got, err := io.ReadAll(conn)
	if err != nil || len(got) != 1 || agentproto.DialAnswer(got[0]) != agentproto.DialRefused {
		t.Errorf("port 0: %v, %v", got, err)
	}
}

// Idle streams hold no buffers, and buffers are reused.
func TestPortsShareBuffers(t *testing.T) {
	p := &ports{}
	echo := server(t, "127.0.0.1:0", func(conn *net.TCPConn) { io.Copy(conn, conn) })
	ours := make([]net.Conn, 20)
	for i := range ours {
		theirs := socketPair(t)
		ours[i] = theirs[0]
		go p.serveConn(theirs[1])
		ours[i].Write(agentproto.AppendDial(nil, echo))
		ours[i].Write([]byte("x"))
		var got [2]byte
		if _, err := io.ReadFull(ours[i], got[:]); err != nil || got[1] != 'x' {
			t.Fatalf("stream %d: %q, %v", i, got, err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// Each stream may have used two buffers, and two more may be on their way back to p.free.
	if n := len(p.free); p.open != len(ours) || n == 0 || n > 4 {
		t.Errorf("%d streams have used %d buffers", p.open, n)
	}
}

// socketPair returns two connected sockets.
func socketPair(t *testing.T) [2]net.Conn {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return [2]net.Conn{a, b}
}

// gone returns true if a host has closed its connection, and false if the host has only finished
// sending.
func TestGone(t *testing.T) {
	c := socketPair(t)
	ours, theirs := c[0].(*net.UnixConn), c[1].(*net.UnixConn)
	if gone(theirs) {
		t.Error("an open stream")
	}
	ours.CloseWrite()
	if gone(theirs) {
		t.Error("the host can still read")
	}
	ours.Close()
	if !gone(theirs) {
		t.Error("the host is closed")
	}
}

// A reset by the guest is not taken for an orderly end, and a stream ends when its server has
// closed the connection.
func TestDialPortEnds(t *testing.T) {
	c := serve(t, nil)
	s := dial(t, c, server(t, "127.0.0.1:0", func(conn *net.TCPConn) {
		conn.Read(make([]byte, 1)) // wait for data, because an earlier reset would look like a failed connect
		conn.SetLinger(0)
	}))
	if _, err := s.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(s); err != nil {
		t.Errorf("the server has reset the connection: %v", err)
	}
	left := make(chan error, 1)
	s = dial(t, c, server(t, "127.0.0.1:0", func(conn *net.TCPConn) {
		_, err := io.Copy(io.Discard, conn)
		left <- err
	}))
	s.Close()
	select {
	case <-left:
	case <-time.After(time.Minute):
		t.Error("the server does not hear that the host has gone")
	}
}

// If the server has closed its connection, a stream ends even if the host keeps the stream open. If
// the server has only finished sending, the stream continues.
func TestDialPortEndsWithItsServer(t *testing.T) {
	t.Parallel() // takes long, because the server is probed only every 10 s
	p := &ports{}
	begin := func(f func(*net.TCPConn)) (host net.Conn, ended chan bool) {
		pair := socketPair(t)
		ended = make(chan bool)
		go func() { p.serveConn(pair[1]); close(ended) }()
		pair[0].Write(agentproto.AppendDial(nil, server(t, "127.0.0.1:0", f)))
		pair[0].SetReadDeadline(time.Now().Add(time.Minute))
		if got, err := io.ReadAll(pair[0]); err != nil || string(got) != string(rune(agentproto.DialOK))+"bye" {
			t.Fatalf("%q, %v", got, err)
		}
		return pair[0], ended
	}
	heard := make(chan string, 1)
	open, openEnded := begin(func(conn *net.TCPConn) {
		io.WriteString(conn, "bye")
		conn.CloseWrite()
		text, _ := io.ReadAll(conn)
		heard <- string(text)
	})
	_, ended := begin(func(conn *net.TCPConn) {
		io.WriteString(conn, "bye")
		raw, err := conn.SyscallConn()
		if err == nil { // let the kernel answer probes of the closed socket for one second, not a minute
			err = raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_LINGER2, 1) })
		}
		if err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ended:
	case <-time.After(3 * time.Minute):
		t.Error("a stream to a closed connection goes on")
	}
	if _, err := open.Write([]byte("and you")); err != nil {
		t.Error(err)
	}
	open.Close()
	if got := <-heard; got != "and you" {
		t.Errorf("a server that has sent all was sent %q", got)
	}
	<-openEnded
}

func TestDialPortEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := agentclient.New(func(context.Context, uint32) (net.Conn, error) {
		cancel()
		return socketPair(t)[0], nil // never answers
	})
	if _, err := c.DialPort(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}
