package net

import (
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// Peer is the device's end of a frame socket. No method blocks, whatever the descriptor's flags
// say: a message is read and written as a whole or not at all.
type Peer struct{ fd int }

// NewPeer takes over fd, one end of a frame socket.
func NewPeer(fd int) *Peer { return &Peer{fd} }

// Close closes the socket. A nil Peer has none.
func (p *Peer) Close() {
	if p != nil {
		_ = unix.Close(p.fd) // nothing was buffered that could fail to be written
	}
}

// peek fills parts with the beginning of the next message, which stays where it is, and returns the
// length of all of it in bytes. 0 is the end of the stream.
func (p *Peer) peek(parts *guestmem.Vector) (n int, err error) {
	return parts.Receive(p.fd, unix.MSG_PEEK|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
}

// read takes the next message, as far as parts have room for it. There must be one.
func (p *Peer) read(parts *guestmem.Vector) error {
	_, err := parts.Receive(p.fd, unix.MSG_DONTWAIT)
	return err
}

// write sends parts as one message.
func (p *Peer) write(parts *guestmem.Vector) error {
	return parts.Send(p.fd, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}
