package rawcall

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

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
			_ = unix.Close(fd) // fails if a test has closed it
		}
	})
	return ends[0], ends[1]
}

func TestStreams(t *testing.T) {
	a, b := pair(t)
	p := make([]byte, 8)
	if n, err := Read(b, p); n != 0 || !errors.Is(err, unix.EAGAIN) {
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
	if err := Close(a); !errors.Is(err, unix.EBADF) {
		t.Errorf("close again: %v", err)
	}
	if n, err := Write(a, nil); n != 0 || !errors.Is(err, unix.EBADF) {
		t.Errorf("write after close: %d, %v", n, err)
	}
}

// connect returns a listening socket in non-blocking mode to which a client has connected.
func connect(t *testing.T) (listener int) {
	t.Helper()
	addr := &unix.SockaddrUnix{Name: t.TempDir() + "/s"}
	listener, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(listener) })
	if err := errors.Join(unix.Bind(listener, addr), unix.Listen(listener, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := Accept(listener, 0); !errors.Is(err, unix.EAGAIN) {
		t.Fatalf("nobody has connected: %v", err)
	}
	client, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(client) })
	if err := unix.Connect(client, addr); err != nil {
		t.Fatal(err)
	}
	return listener
}

func TestAccept(t *testing.T) {
	for _, mode := range []int{unix.SOCK_NONBLOCK, 0} {
		fd, err := Accept(connect(t), mode)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil || flags&unix.O_NONBLOCK != mode {
			t.Errorf("mode %#x, want %#x, %v", flags&unix.O_NONBLOCK, mode, err)
		}
	}
}

// The kernel doubles the size of the buffer.
func TestSendBuffer(t *testing.T) {
	const size = 32 << 10
	a, _ := pair(t)
	if err := SetSendBuffer(a, size); err != nil {
		t.Fatal(err)
	}
	if got, err := unix.GetsockoptInt(a, unix.SOL_SOCKET, unix.SO_SNDBUF); err != nil || got != 2*size {
		t.Errorf("%d bytes, %v", got, err)
	}
}

// TestReadTimeout reads from a socket that never has data.
func TestReadTimeout(t *testing.T) {
	a, _ := pair(t)
	if err := errors.Join(unix.SetNonblock(a, false), SetReadTimeout(a, unix.NsecToTimeval(1e6))); err != nil {
		t.Fatal(err)
	}
	if n, err := Read(a, make([]byte, 1)); n != 0 || !errors.Is(err, unix.EAGAIN) {
		t.Errorf("%d, %v", n, err)
	}
}

// TestCollectionDuringRead starts a garbage collection while a read waits for data. The data is
// sent only after the collection.
func TestCollectionDuringRead(t *testing.T) {
	a, b := pair(t)
	if err := errors.Join(unix.SetNonblock(b, false), SetReadTimeout(b, unix.NsecToTimeval(1e9*3600))); err != nil {
		t.Fatal(err)
	}
	thread, done := make(chan int), make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		_, err := Read(b, make([]byte, 1))
		done <- err
	}()
	waits := fmt.Sprintf("/proc/self/task/%d/syscall", <-thread)
	for call := ""; call != fmt.Sprint(unix.SYS_READ); time.Sleep(time.Millisecond) {
		p, err := os.ReadFile(waits)
		if err != nil {
			t.Fatal(err)
		}
		call, _, _ = strings.Cut(string(p), " ")
	}
	runtime.GC()
	if _, err := Write(a, []byte{1}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestHungUpInterrupted calls HungUp while signals arrive. An interrupted call must not count as a
// hang-up. If it did, most but not all runs of the test would fail.
func TestHungUpInterrupted(t *testing.T) {
	_, b := pair(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread, stop, stopped := unix.Gettid(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG) // Go ignores SIGURG
			}
		}
	}()
	for range 300_000 {
		if HungUp(b) {
			t.Error("hung up while the other end is open")
			break
		}
	}
	close(stop)
	<-stopped
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
	if n, err := EpollWait(e, events); n != 1 || err != nil || events[0].Fd != int32(b) ||
		events[0].Events != unix.EPOLLIN {
		t.Errorf("%d events, %v: %+v", n, err, events[0])
	}
	if err := EpollCtl(e, unix.EPOLL_CTL_DEL, b, nil); err != nil {
		t.Error(err)
	}
	if err := EpollCtl(e, unix.EPOLL_CTL_DEL, b, nil); !errors.Is(err, unix.ENOENT) {
		t.Errorf("removed again: %v", err)
	}
}
