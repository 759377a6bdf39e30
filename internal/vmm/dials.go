package vmm

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// maxDials is how many streams a guest may open to the host after a boot. The agent opens one, to
// announce that it is ready.
const maxDials = 4

// dials passes streams that the guest opened to the daemon. A guest may open a few after a boot,
// which is part of a bake, and none after a restore. Each stream costs the daemon a descriptor, and
// no program in a running sandbox needs to dial the host.
type dials struct {
	forward func(kind vmmproto.Kind, body []byte, fds ...int) error

	mu   sync.Mutex
	left int
}

var errNoDials = errors.New("the guest may not open a stream to the host now")

// allow sets how many more streams the guest may open.
func (d *dials) allow(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = n
}

// take takes ownership of fd, unless the guest may open no more streams. It must not block, because
// the device calls it while it holds a lock that pausing needs. If the daemon does not read, only a
// goroutine blocks.
func (d *dials) take(port uint32, fd int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left == 0 {
		return errNoDials
	}
	d.left--
	var w codec.Writer
	w.U32(port)
	go func() {
		_ = d.forward(vmmproto.KindConn, w.Bytes(), fd) // without a daemon, the stream just ends for the guest
		_ = unix.Close(fd)
	}()
	return nil
}
