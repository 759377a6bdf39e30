package vmm

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmm/machine"
)

// A guest may open each stream of the latest boot once, and no stream after a restore. If the
// daemon reads nothing, the device does not wait.
func TestGuestDialsAreBounded(t *testing.T) {
	told, proceed := make(chan vmmproto.GuestConn, 100), make(chan struct{})
	d := &dials{forward: func(kind vmmproto.Kind, body []byte) error {
		<-proceed // simulates a send to a daemon that reads nothing
		var opened vmmproto.GuestConn
		if err := opened.Parse(codec.NewReader(body)); err != nil || kind != vmmproto.KindConn {
			t.Errorf("kind %d, %v", kind, err)
		}
		told <- opened
		return errors.New("no daemon is connected")
	}}
	streams := func() (fds []int) {
		for range vmmproto.GuestStreams {
			fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			fds = append(fds, fd)
		}
		return fds
	}
	refused := func(when string) {
		t.Helper()
		if fd, err := d.take(9); !errors.Is(err, errNoDials) {
			t.Errorf("%s, a guest may dial: %d, %v", when, fd, err)
		}
	}
	refused("before a boot")
	given := streams()
	d.allow(given)
	for i, want := range given {
		fd, err := d.take(uint32(100 + i))
		if err != nil || fd != want {
			t.Errorf("dial %d after a boot: %d, %v, want %d", i, fd, err, want)
		}
		if err := unix.Close(fd); err != nil {
			t.Errorf("the stream of dial %d: %v", i, err)
		}
	}
	refused("after all streams")
	unused := streams()
	d.allow(unused)
	d.allow(nil)
	refused("after a restore")
	for _, fd := range unused {
		if err := unix.Close(fd); err != unix.EBADF {
			t.Errorf("an unused stream after a restore: %v", err)
		}
	}
	close(proceed)
	for range given {
		if opened := <-told; opened.Port != 100+opened.Stream {
			t.Errorf("%+v", opened)
		}
	}
	if len(told) > 0 {
		t.Error("the daemon was told of a refused dial")
	}
}

// As soon as a restore begins, the guest is not allowed to open further streams, even if the
// restore then fails. In this test, the restore fails because the state is empty.
func TestRestoreEndsDials(t *testing.T) {
	s := &server{machine: &machine.Machine{}, limitFiles: func(uint64) error { return nil }}
	s.dials.forward, s.frames = s.event, listenForFrames(t).frames
	stream, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	s.dials.allow([]int{stream})
	var req, out codec.Writer
	(&vmmproto.Restore{}).Append(&req)
	empty, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.restore(codec.NewReader(req.Bytes()), donate([]int{empty}), &out); err == nil {
		t.Fatal("a restore of an empty state")
	}
	if _, err := s.dials.take(9); !errors.Is(err, errNoDials) {
		t.Errorf("a dial after a restore: %v", err)
	}
}
