package vmfake

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/diffproto"
	"github.com/forkd/forkd/internal/proto/imageproto"
)

// NewBuilders returns VMMs for builder VMs. When such a VM runs, guest serves its connection to the
// host. If guest is nil, the VM never connects.
func NewBuilders(guest func(v *VMM, host net.Conn)) *VMMs { return newHelpers(imageproto.Port, guest) }

// NewDiffers is like NewBuilders, for VMs that compare disks.
func NewDiffers(guest func(v *VMM, host net.Conn)) *VMMs { return newHelpers(diffproto.Port, guest) }

func newHelpers(port uint32, guest func(v *VMM, host net.Conn)) *VMMs {
	return &VMMs{Wrap: func(v *VMM) vmpool.VMM {
		return &builder{VMM: v, port: port, guest: guest, conns: make(chan vmmclient.Conn, 1)}
	}}
}

// Unpacks returns a guest that answers each image with the error of unpack. If unpack is nil,
// Unpacks returns nil.
func Unpacks(unpack func(stream io.Reader) error) func(*VMM, net.Conn) {
	if unpack == nil {
		return nil
	}
	return func(_ *VMM, host net.Conn) { _ = imageproto.WriteAnswer(host, unpack(host)) }
}

// Differs returns a guest that reads what it is asked for, and finds those of the entries that are at or
// below the path of the request. The entries are in the order of a walk.
func Differs(entries ...*diffproto.Entry) func(*VMM, net.Conn) {
	return func(_ *VMM, host net.Conn) {
		req, err := diffproto.ReadRequest(host)
		if err != nil || diffproto.ReadRanges(host, func(diffproto.Range) error { return nil }) != nil {
			return
		}
		done := diffproto.Done{}
		for _, e := range entries {
			if e.Path != req.Path && !strings.HasPrefix(e.Path, strings.TrimSuffix(req.Path, "/")+"/") {
				continue
			}
			if done.Changed++; done.Changed > uint64(req.MaxEntries) {
				continue
			}
			_ = diffproto.WriteEntry(host, e)
			done.LinesAdded += uint64(e.LinesAdded)
			done.LinesDeleted += uint64(e.LinesDeleted)
		}
		_ = diffproto.WriteDone(host, done)
	}
}

type builder struct {
	*VMM
	port  uint32
	guest func(v *VMM, host net.Conn)
	conns chan vmmclient.Conn
	mu    sync.Mutex
	host  net.Conn // the guest's end of the connection; nil: not connected
}

// Resume implements vmpool.VMM.
func (b *builder) Resume(context.Context) error {
	if b.guest == nil {
		return nil
	}
	ours, theirs := net.Pipe()
	b.mu.Lock()
	b.host = theirs
	b.mu.Unlock()
	b.conns <- vmmclient.Conn{Port: b.port, Conn: ours}
	go func() {
		defer theirs.Close()
		b.guest(b.VMM, theirs)
	}()
	return nil
}

func (b *builder) Conns() <-chan vmmclient.Conn { return b.conns }

// Kill implements vmpool.VMM.
func (b *builder) Kill() error {
	b.mu.Lock()
	if b.host != nil {
		b.host.Close()
	}
	b.mu.Unlock()
	return b.VMM.Kill()
}
