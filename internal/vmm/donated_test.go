package vmm

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmm/machine"
)

// A request that names a frame socket but has no descriptor for it is refused. A descriptor is used
// for only one frame socket.
func TestFrameSocketIsAmongTheDescriptors(t *testing.T) {
	s := &server{machine: &machine.Machine{}, limitFiles: func(uint64) error { return nil }}
	var boot, restore, out codec.Writer
	(&vmmproto.Boot{Net: true}).Append(&boot)
	(&vmmproto.Restore{Net: true}).Append(&restore)
	state, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"boot":    s.boot(codec.NewReader(boot.Bytes()), donate(nil)),
		"restore": s.restore(codec.NewReader(restore.Bytes()), donate([]int{state}), &out),
	} {
		if err == nil || !strings.Contains(err.Error(), "frame socket") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := unix.Close(state); err != unix.EBADF {
		t.Errorf("closing the state that was not restored again: %v", err)
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	files := donate([]int{fd})
	peer, err := files.peer(true)
	if err != nil || len(files.fds) != 0 {
		t.Fatalf("%v, %d descriptors left", err, len(files.fds))
	}
	peer.Close()
	if err := unix.Close(fd); err != unix.EBADF {
		t.Errorf("closing it again: %v", err)
	}
	if peer, err := donate([]int{fd}).peer(false); peer != nil || err != nil {
		t.Errorf("%v, %v where there is none", peer, err)
	}
}
