package rawcall

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

func pair(t *testing.T) (a, b int) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, fd := range ends {
			_ = unix.Close(fd) // a test may have closed it
		}
	})
	return ends[0], ends[1]
}

func TestStreams(t *testing.T) {
	a, b := pair(t)
	p := make([]byte, 8)
	if n, err := Read(b, p); n != 0 || err != unix.EAGAIN {
		t.Errorf("read from an empty socket: %d, %v", n, err)
	}
	if n, err := Write(a, []byte("abc")); n != 3 || err != nil {
		t.Fatalf("write: %d, %v", n, err)
	}
	for _, read := range []func(int, []byte) (int, error){Peek, Peek, Read} {
		if n, err := read(b, p); err != nil || !bytes.Equal(p[:n], []byte("abc")) {
			t.Errorf("%q, %v", p[:n], err)
		}
	}
	if HungUp(b) {
		t.Error("hung up while the other end is open")
	}
	if err := Close(a); err != nil {
		t.Fatal(err)
	}
	if n, err := Read(b, p); n != 0 || err != nil || !HungUp(b) {
		t.Errorf("after the end: %d, %v, hung up %v", n, err, HungUp(b))
	}
	if err := Close(a); err != unix.EBADF {
		t.Errorf("close again: %v", err)
	}
	if n, err := Write(a, nil); n != 0 || err != unix.EBADF {
		t.Errorf("write after close: %d, %v", n, err)
	}
}

func TestAccept(t *testing.T) {
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(l)
	addr := &unix.SockaddrUnix{Name: t.TempDir() + "/s"}
	if err := unix.Bind(l, addr); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(l, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := Accept(l); err != unix.EAGAIN {
		t.Fatalf("nobody has connected: %v", err)
	}
	c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(c)
	if err := unix.Connect(c, addr); err != nil {
		t.Fatal(err)
	}
	fd, err := Accept(l)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if n, err := Read(fd, make([]byte, 1)); n != 0 || err != unix.EAGAIN {
		t.Errorf("it is in blocking mode: %d, %v", n, err)
	}
}

func TestEpoll(t *testing.T) {
	a, b := pair(t)
	e, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(e)
	if err := EpollCtl(e, unix.EPOLL_CTL_ADD, b, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(b)}); err != nil {
		t.Fatal(err)
	}
	events := make([]unix.EpollEvent, 4)
	if n, err := EpollWait(e, events); n != 0 || err != nil {
		t.Errorf("nothing has happened: %d, %v", n, err)
	}
	if _, err := Write(a, []byte{1}); err != nil {
		t.Fatal(err)
	}
	if n, err := EpollWait(e, events); n != 1 || err != nil || events[0].Fd != int32(b) || events[0].Events != unix.EPOLLIN {
		t.Errorf("%d events, %v: %+v", n, err, events[0])
	}
	if err := EpollCtl(e, unix.EPOLL_CTL_DEL, b, nil); err != nil {
		t.Error(err)
	}
	if err := EpollCtl(e, unix.EPOLL_CTL_DEL, b, nil); err != unix.ENOENT {
		t.Errorf("removed again: %v", err)
	}
}

func TestRandom(t *testing.T) {
	p, zero := make([]byte, 64), make([]byte, 64)
	if n, err := Random(p); n != len(p) || err != nil || bytes.Equal(p, zero) {
		t.Errorf("%d, %v: %x", n, err, p)
	}
	if n, err := Random(nil); n != 0 || err != nil {
		t.Errorf("nothing: %d, %v", n, err)
	}
}
