package vmmclient

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// framesListener makes the listener of a VMM that the test simulates.
func framesListener(t *testing.T, v *VMM) int {
	t.Helper()
	fd, err := listen(filepath.Join(v.dir, framesSocket), unix.SOCK_SEQPACKET, framesBacklog)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func dialFrames(t *testing.T, v *VMM) *os.File {
	t.Helper()
	f, err := v.DialFrames()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// Only the VMM has its end of a frame socket, even while the daemon waits for the VMM. So the
// daemon's end reports a hang-up as soon as the VMM has closed its end.
func TestOnlyTheVMMHasItsFrameSockets(t *testing.T) {
	v, vmm := scripted(t)
	listener := framesListener(t, v)
	ours := dialFrames(t, v)
	result := make(chan error, 1)
	go func() { result <- v.SetNet(t.Context(), true) }()
	kind, body, fds, err := vmm.Receive()
	if err != nil || kind != vmmproto.KindNet || len(body) != 1 || body[0] != 1 || len(fds) != 0 {
		t.Fatalf("message %d, %v, %d descriptors, %v", kind, body, len(fds), err)
	}
	theirs, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	hungUp := func() bool {
		poll := []unix.PollFd{{Fd: int32(ours.Fd())}} // poll(2) always reports a hang-up
		if _, err := unix.Poll(poll, 0); err != nil {
			t.Fatal(err)
		}
		return poll[0].Revents&unix.POLLHUP != 0
	}
	if hungUp() {
		t.Error("it has hung up before the VMM has closed its end")
	}
	if err := unix.Close(theirs); err != nil {
		t.Fatal(err)
	}
	if !hungUp() {
		t.Error("the VMM has closed its end, and another process has it still")
	}
	if err := errors.Join(vmm.Send(vmmproto.KindOK, nil), <-result); err != nil {
		t.Error(err)
	}
}

// A VMM that accepts no frame sockets cannot make the daemon wait, and only a bounded number of
// sockets waits for that VMM. When the daemon has closed its ends, these sockets cost the daemon no
// descriptors.
func TestFrameSocketsThatWait(t *testing.T) {
	v, _ := scripted(t)
	listener := framesListener(t, v)
	before := openSockets(t)
	waiting := 0
	within(t, "connecting frame sockets", func() {
		for {
			f, err := v.DialFrames()
			if err != nil {
				if !errors.Is(err, unix.EAGAIN) {
					t.Error(err)
				}
				return
			}
			f.Close()
			waiting++
		}
	})
	if waiting < framesBacklog || waiting > framesBacklog+1 {
		t.Errorf("%d frame sockets wait, want %d", waiting, framesBacklog)
	}
	if after := openSockets(t); after > before {
		t.Errorf("the daemon has %d sockets, before there were %d", after, before)
	}
	for range waiting {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
	}
	dialFrames(t, v)
	if err := os.Remove(filepath.Join(v.dir, framesSocket)); err != nil {
		t.Fatal(err)
	}
	if _, err := v.DialFrames(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a socket: %v", err)
	}
}

// openSockets returns the number of sockets that this process has.
func openSockets(t *testing.T) (n int) {
	t.Helper()
	names, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if to, err := os.Readlink(name); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// The end for forkd-net does not block, and its buffer has room for two messages of the maximum
// length.
func TestEndForForkdNet(t *testing.T) {
	v, _ := scripted(t)
	framesListener(t, v)
	f := dialFrames(t, v)
	long := make([]byte, frame.MaxMessage)
	for i := range 1000 {
		if _, err := unix.Write(int(f.Fd()), long); err != nil {
			if !errors.Is(err, unix.EAGAIN) || i < 2 {
				t.Errorf("message %d: %v", i, err)
			}
			return
		}
	}
	t.Error("1000 unread messages fit into the socket")
}
