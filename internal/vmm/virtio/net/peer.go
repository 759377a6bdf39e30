package net

import (
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// Peer is the device's end of a frame socket. No method blocks, whatever the descriptor's flags. A
// message is read or written completely or not at all.
type Peer struct{ fd int }

// NewPeer takes over fd, one end of a frame socket.
func NewPeer(fd int) *Peer { return &Peer{fd} }

// Close closes the socket. It does nothing for a nil Peer.
func (p *Peer) Close() {
	if p != nil {
		_ = unix.Close(p.fd) // has no buffered data whose loss an error would report
	}
}

// peek fills parts with the beginning of the next message, without removing it, and returns the
// length of the whole message in bytes. 0 is the end of the stream.
func (p *Peer) peek(parts *guestmem.Vector) (n int, err error) {
	return parts.Receive(p.fd, unix.MSG_PEEK|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
}

// read removes the next message, which must exist, and stores as much of it as fits into parts.
func (p *Peer) read(parts *guestmem.Vector) error {
	_, err := parts.Receive(p.fd, unix.MSG_DONTWAIT)
	return err
}

// write sends parts as one message.
func (p *Peer) write(parts *guestmem.Vector) error {
	return parts.Send(p.fd, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}
