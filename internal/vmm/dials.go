package vmm

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// maxDials is how many streams a guest may open to the host after a boot. The agent needs one
// stream, to tell the host that the guest is ready.
const maxDials = 4

// dials passes to the daemon the streams that the guest opens. A guest may open a few streams after
// a boot, and no stream after a restore. Only a bake boots a guest. Each stream costs the daemon a
// descriptor, and no program in a running sandbox has a reason to open a stream.
type dials struct {
	forward func(kind vmmproto.Kind, body []byte, fds ...int) error

	mu   sync.Mutex
	left int
}

var errNoDials = errors.New("the guest may not open a stream to the host now")

// allow sets how many further streams the guest may open.
func (d *dials) allow(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = n
}

// take passes the stream fd to the daemon and takes ownership of fd. If the guest may open no more
// streams, take returns an error, and fd stays with the caller. take must not block, because the
// vsock device calls it while holding a lock that a pause needs. So a goroutine passes the stream.
// If the daemon does not read, only that goroutine waits.
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
		// An error means that no daemon is connected; closing fd then ends the stream for the
		// guest.
		_ = d.forward(vmmproto.KindConn, w.Bytes(), fd)
		_ = unix.Close(fd)
	}()
	return nil
}
