package vmfake

import (
	"context"
	"io"
	"net"
	"sync"

	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/imageproto"
)

// NewBuilders returns VMMs for builder VMs. When such a VM runs, guest serves its connection to the
// host. If guest is nil, the VM never connects.
func NewBuilders(guest func(v *VMM, host net.Conn)) *VMMs {
	return &VMMs{Wrap: func(v *VMM) vmpool.VMM {
		return &builder{VMM: v, guest: guest, conns: make(chan vmmclient.Conn, 1)}
	}}
}

// Unpacks returns a guest that answers with the error of unpack, or nil if unpack is nil.
func Unpacks(unpack func(stream io.Reader) error) func(*VMM, net.Conn) {
	if unpack == nil {
		return nil
	}
	return func(_ *VMM, host net.Conn) { _ = imageproto.WriteAnswer(host, unpack(host)) }
}

type builder struct {
	*VMM
	guest func(v *VMM, host net.Conn)
	conns chan vmmclient.Conn
	mu    sync.Mutex
	host  net.Conn // end of the guest; nil: not connected
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
	b.conns <- vmmclient.Conn{Port: imageproto.Port, Conn: ours}
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
