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

// dials passes streams that the guest opened to the daemon: a few after a boot, which is part of a
// bake, and none after a restore. Each costs the daemon a descriptor, and nothing in a running
// sandbox dials the host.
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

// take takes ownership of fd, unless the guest may open no more streams. It does not block, because
// the device calls it with a lock held that a pause waits for. A daemon that reads nothing blocks
// only a goroutine here.
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
		_ = d.forward(vmmproto.KindConn, w.Bytes(), fd) // without a daemon the guest sees the end of the stream
		_ = unix.Close(fd)
	}()
	return nil
}
