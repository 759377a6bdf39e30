package linger

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair returns two connected sockets. The socket ours is a connection, as in the daemon, or a file,
// as in forkd-net.
func pair(t *testing.T, kind int) (ours Socket, theirs int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "ours")
	if kind == unix.SOCK_SEQPACKET {
		return f, fds[1]
	}
	c, err := net.FileConn(f)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return c.(*net.UnixConn), fds[1]
}

func TestSet(t *testing.T) {
	for name, kind := range map[string]int{"stream": unix.SOCK_STREAM, "packets": unix.SOCK_SEQPACKET} {
		t.Run(name, func(t *testing.T) {
			var s Set
			idle, other := pair(t, kind)
			defer unix.Close(other)
			if err := s.Close(idle, nil); err != nil || s.Held() != 0 {
				t.Fatalf("a socket without data: %v, %d held", err, s.Held())
			}
			if n, err := unix.Read(other, make([]byte, 1)); n != 0 || err != nil {
				t.Errorf("the peer of a closed socket reads %d bytes, %v", n, err)
			}
			var peers []int
			for range 2 {
				c, peer := pair(t, kind)
				if _, err := c.(io.Writer).Write([]byte("data")); err != nil {
					t.Fatal(err)
				}
				if err := s.Close(c, nil); err != nil {
					t.Fatal(err)
				}
				if _, err := c.(io.Writer).Write([]byte("more")); err == nil {
					t.Error("a kept socket can be written to")
				}
				if err := unix.Sendto(peer, []byte("more"), unix.MSG_NOSIGNAL, nil); err != unix.EPIPE {
					t.Errorf("the peer of a kept socket can write: %v", err)
				}
				peers = append(peers, peer)
			}
			if n := s.Held(); n != 2 {
				t.Fatalf("%d sockets are held, not 2", n)
			}
			p := make([]byte, 9)
			if n, err := unix.Read(peers[0], p); string(p[:max(n, 0)]) != "data" {
				t.Errorf("the peer of a kept socket reads %q, %v", p[:max(n, 0)], err)
			}
			if n := s.Held(); n != 1 {
				t.Errorf("%d sockets are held after one peer has read all, not 1", n)
			}
			unix.Close(peers[0])
			unix.Close(peers[1])
			if n := s.Held(); n != 0 {
				t.Errorf("%d sockets are held after their peers were closed", n)
			}
		})
	}
}

// A socket whose connection waits in the backlog of a listener is kept too, because its data has
// not been read.
func TestUnaccepted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("data")); err != nil {
		t.Fatal(err)
	}
	var s Set
	if err := s.Close(c.(*net.UnixConn), nil); err != nil || s.Held() != 1 {
		t.Fatalf("%v, %d held", err, s.Held())
	}
	if l.Close(); s.Held() != 0 {
		t.Error("the socket is held after its listener was closed")
	}
}

// A set closes a socket after the peer has closed its end, even if no method is called. Then it
// calls the function that Close received for this socket.
func TestEndedPeersLeaveNoDescriptors(t *testing.T) {
	var gone atomic.Int64
	var s Set
	count := func() { gone.Add(1) }
	var peers []int
	for range 2 {
		c, peer := pair(t, unix.SOCK_STREAM)
		if _, err := c.(io.Writer).Write([]byte("data")); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(c, count); err != nil {
			t.Fatal(err)
		}
		peers = append(peers, peer)
	}
	if n := gone.Load(); n != 0 {
		t.Errorf("the function gone was called %d times for kept sockets", n)
	}
	empty, peer := pair(t, unix.SOCK_STREAM)
	defer unix.Close(peer)
	if err := s.Close(empty, count); err != nil || gone.Load() != 1 {
		t.Errorf("the function gone was called %d times after a socket without data, %v", gone.Load(), err)
	}
	if err := s.Close(empty, count); err == nil || gone.Load() != 2 {
		t.Errorf("the function gone was called %d times after a closed socket, %v", gone.Load(), err)
	}
	for _, peer := range peers {
		unix.Close(peer)
	}
	for end := time.Now().Add(time.Minute); gone.Load() < 4; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the sockets are still kept")
		}
	}
}

// Data that the peer has sent to a kept socket is dropped, because the kernel charges it to the peer.
func TestKeptSocketsHoldNothingOfThePeer(t *testing.T) {
	var s Set
	c, peer := pair(t, unix.SOCK_STREAM)
	defer unix.Close(peer)
	if _, err := c.(io.Writer).Write([]byte("data")); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(peer, make([]byte, 50_000)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(c, nil); err != nil || s.Held() != 1 {
		t.Fatalf("%v, %d held", err, s.Held())
	}
	if n, err := unix.IoctlGetInt(peer, unix.SIOCOUTQ); n != 0 || err != nil {
		t.Errorf("%d bytes of the peer are kept, %v", n, err)
	}
}
