package net

import (
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// Peer is the device's end of a frame socket, which is in non-blocking mode (see package frame).
// Its methods read or write a message completely or not at all.
type Peer struct{ fd int }

// NewPeer returns a Peer for fd, one end of a frame socket, and takes ownership of fd.
func NewPeer(fd int) *Peer { return &Peer{fd} }

// Close closes the socket. It does nothing for a nil Peer.
func (p *Peer) Close() {
	if p != nil {
		_ = unix.Close(p.fd) // nothing is buffered, so no data can be lost here
	}
}

// peek fills the given parts with the beginning of the next message, which stays in the socket. It
// returns the length of the whole message in bytes, or 0 at the end of the stream.
func (p *Peer) peek(parts *guestmem.Vector) (n int, err error) {
	return parts.Receive(p.fd, unix.MSG_PEEK|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
}

// read removes the next message from the socket. It stores as much of the message as fits into the
// given parts. There must be a message.
func (p *Peer) read(parts *guestmem.Vector) error {
	_, err := parts.Receive(p.fd, unix.MSG_DONTWAIT)
	return err
}

// write sends the given parts as one message.
func (p *Peer) write(parts *guestmem.Vector) error {
	return parts.Send(p.fd)
}
