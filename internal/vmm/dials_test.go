package vmm

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmm/machine"
)

// A guest may open a few streams after a boot, and none after a restore. If the daemon does not
// accept them, the device does not block.
func TestGuestDialsAreBounded(t *testing.T) {
	taken, proceed := make(chan int, 100), make(chan struct{})
	d := &dials{forward: func(kind vmmproto.Kind, _ []byte, fds ...int) error {
		<-proceed // simulates a send to a daemon that reads nothing
		if kind != vmmproto.KindConn || len(fds) != 1 {
			t.Errorf("kind %d with %d descriptors", kind, len(fds))
		}
		taken <- fds[0]
		return errors.New("no daemon is connected")
	}}
	dial := func() error {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		err = d.take(9, fd)
		if err != nil {
			if err := unix.Close(fd); err != nil {
				t.Errorf("the descriptor of a refused dial: %v", err)
			}
		}
		return err
	}
	if dial() == nil {
		t.Error("a guest that was not booted here may dial")
	}
	d.allow(maxDials)
	for i := range maxDials {
		if err := dial(); err != nil {
			t.Errorf("dial %d after a boot: %v", i, err)
		}
	}
	if dial() == nil {
		t.Errorf("a guest may dial more than %d times", maxDials)
	}
	d.allow(maxDials)
	d.allow(0)
	if dial() == nil {
		t.Error("a restored guest may dial")
	}
	close(proceed)
	for range maxDials {
		<-taken
	}
	if len(taken) > 0 {
		t.Error("a refused dial was forwarded")
	}
}

// As soon as a restore begins, the guest may open no more streams, even if the restore then fails.
// In this test, the restore fails because the state is empty.
func TestRestoreEndsDials(t *testing.T) {
	s := &server{machine: &machine.Machine{}, limitFiles: func(uint64) error { return nil }}
	s.dials.forward = s.event
	s.dials.allow(maxDials)
	var req, out codec.Writer
	(&vmmproto.Restore{}).Append(&req)
	empty, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.restore(codec.NewReader(req.Bytes()), donate([]int{empty}), &out); err == nil {
		t.Fatal("a restore of an empty state")
	}
	if err := s.dials.take(9, -1); !errors.Is(err, errNoDials) {
		t.Errorf("a dial after a restore: %v", err)
	}
}
