package vmm

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/rawcall"
	"github.com/forkd/forkd/internal/vmm/virtio/net"
)

// frames is the descriptor of the listener for frame sockets. The listener is in non-blocking mode.
// The VMM accepts its end of a frame socket itself, so no other process ever has this end. If
// another process had this end and closed it last, that process could wait for a lock that a
// hostile VMM holds (see docs/threat-model.md).
type frames int

// This is the result of newest() if no connection waits.
const none = -1

// newest accepts all connections that wait. It requests the usual size for their send buffers,
// returns the descriptor of the newest connection, and closes all other connections.
func (f frames) newest() (fd int, err error) {
	fd = none
	for {
		next, err := rawcall.Accept(int(f), unix.SOCK_NONBLOCK)
		if errors.Is(err, unix.EAGAIN) {
			return fd, nil
		}
		if fd != none {
			_ = rawcall.Close(fd)
		}
		if err != nil {
			return none, fmt.Errorf("accept a frame socket: %w", err)
		}
		fd = next
		_ = rawcall.SetSendBuffer(fd, frame.BufferBytes) // after an error, the kernel's default is in force
	}
}

// peer returns the machine's next frame socket, which is nil without a network. If keep is true,
// the machine keeps its present frame socket; see vmmproto.SetNet.
func (s *server) peer(network bool) (p *net.Peer, keep bool, err error) {
	fd, err := s.frames.newest()
	switch {
	case err != nil:
		return nil, false, err
	case fd == none && network && !s.started:
		return nil, false, errors.New("the request is for a VM with a network, but no frame socket waits")
	case fd == none:
		return nil, network, nil
	case !network:
		_ = rawcall.Close(fd)
		return nil, false, nil
	}
	return net.NewPeer(fd), false, nil
}
