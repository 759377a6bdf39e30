package vmm

import (
	"errors"
	"sync"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/rawcall"
)

// dials holds the streams that the guest may open to the host. The daemon sends them with the
// request to boot. After a restore there are none: no program in a running sandbox has a reason to
// open a stream, and only a bake boots a guest.
type dials struct {
	forward func(kind vmmproto.Kind, body []byte) error

	mu      sync.Mutex
	streams []int // one end of each unused stream
	used    int
}

var errNoDials = errors.New("the guest may not open a stream to the host now")

// allow sets the streams that the guest may still open, and takes ownership of them.
func (d *dials) allow(streams []int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, fd := range d.streams {
		_ = rawcall.Close(fd)
	}
	d.streams, d.used = streams, 0
}

// take returns the next stream and tells the daemon that the guest has opened it. The caller owns
// the stream. take must not block, because the vsock device calls it while holding a lock that a
// pause needs. So a goroutine tells the daemon. If the daemon does not read, only that goroutine
// waits.
func (d *dials) take(port uint32) (fd int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.streams) == 0 {
		return -1, errNoDials
	}
	fd, d.streams = d.streams[0], d.streams[1:]
	opened := vmmproto.GuestConn{Port: port, Stream: uint32(d.used)}
	d.used++
	go func() {
		var w codec.Writer
		opened.Append(&w)
		// An error means that no daemon is connected. The other end of the stream is then closed.
		_ = d.forward(vmmproto.KindConn, w.Bytes())
	}()
	return fd, nil
}
