package nic

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/kmsg"
	"github.com/forkd/forkd/internal/proto/frame"
)

// inNamespaces calls guest(t, listener) on a thread that has its own network and mount namespaces.
// The thread's eth0 is connected to a gateway in a second network. The listener listens at the
// gateway's address in that second network.
func inNamespaces(t *testing.T, guest func(t *testing.T, listener net.Listener)) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("the program ip is missing (package iproute2)")
	}
	tid, wired, listening, over := make(chan int), make(chan error), make(chan net.Listener), make(chan struct{})
	defer close(over)
	go func() { // when the goroutine ends, its thread exits, and the network disappears
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("unshare: %v", err)
		}
		tid <- unix.Gettid()
		if <-wired != nil {
			close(listening)
			return
		}
		ip(t, "link set lo up")
		ip(t, "addr add %s/%d dev peer", frame.Gateway, frame.PrefixBits)
		ip(t, "link set peer up")
		l, err := net.Listen("tcp4", frame.Gateway+":0")
		if err != nil {
			t.Error(err)
		}
		listening <- l
		<-over
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		host := <-tid
		err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS)
		err = errors.Join(err, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		err = errors.Join(err, unix.Mount("sysfs", "/sys", "sysfs", 0, "")) // so that sysfs shows the network of this thread
		if err == nil {
			err = command("link set lo up")
		}
		if err == nil {
			err = command("link add %s type veth peer name peer netns %d", name, host)
		}
		wired <- err
		if l := <-listening; err == nil && l != nil {
			defer l.Close()
			guest(t, l)
		} else {
			t.Errorf("make namespaces: %v", err)
		}
	}()
	<-done
}

func command(format string, args ...any) error {
	words := strings.Fields(fmt.Sprintf(format, args...))
	if out, err := exec.Command("ip", words...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %v: %w: %s", words, err, out)
	}
	return nil
}

func ip(t *testing.T, format string, args ...any) {
	t.Helper()
	if err := command(format, args...); err != nil {
		t.Error(err)
	}
}

func output(t *testing.T, words ...string) string {
	t.Helper()
	out, err := exec.Command("ip", words...).CombinedOutput()
	if err != nil {
		t.Errorf("ip %v: %v", words, err)
	}
	return string(out)
}

func TestUp(t *testing.T) {
	inNamespaces(t, func(t *testing.T, _ net.Listener) {
		if err := Up(); err != nil {
			t.Error(err)
			return
		}
		if got := output(t, "addr", "show", "dev", name); !strings.Contains(got, "192.0.2.2/24 ") ||
			strings.Contains(got, "inet6") {
			t.Errorf("addresses: %s", got)
		}
		if got := output(t, "route"); !strings.Contains(got, "default via 192.0.2.1 dev eth0") {
			t.Errorf("routes: %s", got)
		}
		if err := Up(); !errors.Is(err, unix.EEXIST) {
			t.Errorf("a second time: %v", err)
		}
	})
}

// pair holds both ends of a connection of the guest.
type pair struct {
	net.Conn
	other net.Conn
}

func connect(t *testing.T, l net.Listener, dial func() (net.Conn, error)) *pair {
	t.Helper()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Errorf("accept: %v", err)
		}
		accepted <- c
	}()
	c, err := dial()
	if err != nil {
		t.Error(err)
		runtime.Goexit() // FailNow may only be called in the test's own goroutine
	}
	return &pair{c, <-accepted}
}

// dial6 connects an IPv6 socket to an IPv4 address, like programs that only use IPv6 sockets.
func dial6(addr *net.TCPAddr) (net.Conn, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	if err := unix.Connect(fd, &unix.SockaddrInet6{Port: addr.Port, Addr: [16]byte(addr.IP.To16())}); err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

func (p *pair) wantAlive(t *testing.T, what string) {
	t.Helper()
	for _, way := range [][2]net.Conn{{p.Conn, p.other}, {p.other, p.Conn}} {
		got := make([]byte, 4)
		_, err := way[0].Write([]byte("ping"))
		if _, rerr := io.ReadFull(way[1], got); err != nil || rerr != nil {
			t.Errorf("%s: %v, %v", what, err, rerr)
		}
	}
}

// Reset ends connections to other hosts immediately, even if a process waits in a read. All other
// connections continue.
func TestReset(t *testing.T) {
	inNamespaces(t, func(t *testing.T, l net.Listener) {
		if err := Up(); err != nil {
			t.Error(err)
			return
		}
		c, err := openConnections()
		if err != nil {
			t.Skip(err)
		}
		defer c.Close()
		outside := l.Addr().(*net.TCPAddr)
		to := func(addr net.Addr) func() (net.Conn, error) {
			return func() (net.Conn, error) { return net.Dial("tcp4", addr.String()) }
		}
		leaving := map[string]*pair{
			"plain":       connect(t, l, to(outside)),
			"mapped":      connect(t, l, func() (net.Conn, error) { return dial6(outside) }),
			"half-closed": connect(t, l, to(outside)),
		}
		if err := leaving["half-closed"].Conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Error(err)
		}
		staying := map[string]*pair{}
		for _, addr := range []string{"127.0.0.1:0", frame.Guest + ":0"} {
			own, err := net.Listen("tcp4", addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer own.Close()
			staying[addr] = connect(t, own, to(own.Addr()))
		}
		for what, p := range leaving {
			p.other.Write([]byte("seen"))
			if _, err := io.ReadFull(p, make([]byte, 4)); err != nil {
				t.Errorf("%s before: %v", what, err)
			}
		}
		ended := make(chan error, len(leaving))
		for _, p := range leaving {
			go func() {
				_, err := p.Read(make([]byte, 1))
				ended <- err
			}()
		}
		if err := c.Reset(); err != nil {
			t.Error(err)
		}
		for range leaving {
			if err := <-ended; !errors.Is(err, unix.ECONNABORTED) {
				t.Errorf("a read that waited: %v", err)
			}
		}
		for what, p := range leaving {
			if _, err := p.other.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) && what != "half-closed" {
				t.Errorf("%s: the other end: %v", what, err)
			}
		}
		for what, p := range staying {
			p.wantAlive(t, what)
		}
		connect(t, l, to(outside)).wantAlive(t, "a new connection")
	})
}

// A guest without connections is searched once. It is searched again only after it has sent a
// packet. No search allocates memory.
func TestResetOfAGuestWithoutConnections(t *testing.T) {
	inNamespaces(t, func(t *testing.T, l net.Listener) {
		if err := Up(); err != nil {
			t.Error(err)
			return
		}
		c, err := openConnections()
		if err != nil {
			t.Skip(err)
		}
		defer c.Close()
		reset := func() (searched bool) {
			t.Helper()
			before := c.diag.seq
			if err := c.Reset(); err != nil {
				t.Error(err)
			}
			return c.diag.seq != before
		}
		if !reset() || reset() {
			t.Error("the first of two is not the only search")
		}
		n := testing.AllocsPerRun(10, func() {
			c.cleanLen = 0
			if err := c.Reset(); err != nil {
				t.Error(err)
			}
		})
		if n != 0 {
			t.Errorf("a search allocates %v times", n)
		}
		p := connect(t, l, func() (net.Conn, error) { return net.Dial("tcp4", l.Addr().String()) })
		p.wantAlive(t, "connection")
		if err := c.Rehearse(); err != nil {
			t.Error(err)
		}
		p.wantAlive(t, "after a rehearsal")
		if !reset() {
			t.Error("a guest with a connection is not searched")
		}
		if _, err := p.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
			t.Errorf("the connection: %v", err)
		}
	})
}

// If the kernel cannot close connections, OpenConnections returns nil. The Reset of a nil
// Connections does nothing.
func TestNoConnections(t *testing.T) {
	var c *Connections
	if err := errors.Join(c.Reset(), c.Rehearse()); err != nil {
		t.Error(err)
	}
	inNamespaces(t, func(t *testing.T, _ net.Listener) {
		ip(t, "link set %s name other", name)
		var log strings.Builder
		if c := OpenConnections(kmsg.NewPlain(&log)); c != nil || !strings.Contains(log.String(), "will not be reset") {
			t.Errorf("%v; the log: %s", c, log.String())
		}
		if Up() == nil {
			t.Error("up without an interface")
		}
	})
}

func TestTruncatedAnswers(t *testing.T) {
	n := &netlink{}
	var p [unix.SizeofNlMsghdr + 4]byte
	n.header(p[:], unix.NLMSG_ERROR, 0)
	for k := 1; k < len(p); k++ {
		if _, err := n.messages(p[:k], nil); !errors.Is(err, errShort) {
			t.Errorf("%d of %d bytes: %v", k, len(p), err)
		}
	}
	n.header(p[:unix.SizeofNlMsghdr], unix.NLMSG_ERROR, 0) // the error code is missing
	if _, err := n.messages(p[:unix.SizeofNlMsghdr], nil); !errors.Is(err, errShort) {
		t.Error(err)
	}
	n.seq++ // so that the message belongs to another request
	if done, err := n.messages(p[:unix.SizeofNlMsghdr], nil); done || err != nil {
		t.Error(done, err)
	}
}
