package vmm

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmm/machine"
)

// listener is a listener for frame sockets, with its path.
type listener struct {
	frames
	path string
}

func listenForFrames(t *testing.T) *listener {
	t.Helper()
	l := &listener{path: filepath.Join(t.TempDir(), "s")}
	fd := socket(t)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: l.path}), unix.Listen(fd, 16)); err != nil {
		t.Fatal(err)
	}
	l.frames = frames(fd)
	return l
}

// socket makes a unix socket, which is closed when the test ends.
func socket(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// dial connects a frame socket.
func (l *listener) dial(t *testing.T) int {
	t.Helper()
	fd := socket(t)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: l.path}); err != nil {
		t.Fatal(err)
	}
	return fd
}

// isOpen reports whether the other end of a frame socket is open.
func isOpen(t *testing.T, fd int) bool {
	t.Helper()
	poll := []unix.PollFd{{Fd: int32(fd)}}
	if _, err := unix.Poll(poll, 0); err != nil {
		t.Fatal(err)
	}
	return poll[0].Revents&unix.POLLHUP == 0
}

// If several frame sockets wait, the VMM uses the newest and closes the other waiting sockets. If
// no frame socket waits, it keeps its present frame socket.
func TestNewestFrameSocket(t *testing.T) {
	l := listenForFrames(t)
	sockets := []int{l.dial(t), l.dial(t), l.dial(t)}
	fd, err := l.newest()
	if err != nil || fd == none {
		t.Fatal(fd, err)
	}
	defer unix.Close(fd)
	for i, fd := range sockets {
		if newest := i == len(sockets)-1; isOpen(t, fd) != newest {
			t.Errorf("socket %d is open: %v", i, !newest)
		}
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
		t.Errorf("it has the flags %#x, %v", flags, err)
	}
	like := socket(t) // its buffer gets the size that the VMM must have requested
	if err := unix.SetsockoptInt(like, unix.SOL_SOCKET, unix.SO_SNDBUF, frame.BufferBytes); err != nil {
		t.Fatal(err)
	}
	want, _ := unix.GetsockoptInt(like, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if size, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err != nil || size != want {
		t.Errorf("its buffer has %d bytes, want %d, %v", size, want, err)
	}
	s := &server{frames: l.frames, started: true}
	if again, keep, err := s.peer(true); again != nil || !keep || err != nil {
		t.Errorf("without a socket that waits: %v, keep %v, %v", again, keep, err)
	}
	used := l.dial(t)
	p, keep, err := s.peer(true)
	if err != nil || p == nil || keep || !isOpen(t, used) {
		t.Fatalf("%v, keep %v, %v", p, keep, err)
	}
	defer p.Close()
	unused := l.dial(t)
	if p, keep, err := s.peer(false); p != nil || keep || err != nil {
		t.Errorf("without a network: %v, keep %v, %v", p, keep, err)
	}
	if isOpen(t, unused) {
		t.Error("without a network, a frame socket is open")
	}
}

// A VM without a guest has no frame socket to keep. So if no frame socket waits, a request for a
// network is refused.
func TestFrameSocketMustWait(t *testing.T) {
	s := &server{frames: listenForFrames(t).frames, machine: &machine.Machine{}}
	s.limitFiles = func(uint64) error { return nil }
	var boot, restore, set, out codec.Writer
	(&vmmproto.Boot{Net: true}).Append(&boot)
	(&vmmproto.Restore{Net: true}).Append(&restore)
	(&vmmproto.SetNet{Net: true}).Append(&set)
	fds := make([]int, 2+vmmproto.GuestStreams) // the server closes them
	for i := range fds {
		var err error
		if fds[i], err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
	for name, err := range map[string]error{
		"boot":    s.boot(codec.NewReader(boot.Bytes()), donate(fds[1:])),
		"restore": s.restore(codec.NewReader(restore.Bytes()), donate(fds[:1]), &out),
		"net":     s.setNet(codec.NewReader(set.Bytes())),
	} {
		if err == nil || !strings.Contains(err.Error(), "no frame socket waits") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
