package net

import (
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// Peer is the device's end of a frame socket. No method blocks, regardless of the descriptor's
// flags: a message is read or written completely or not at all.
type Peer struct{ fd int }

// NewPeer takes over fd, one end of a frame socket.
func NewPeer(fd int) *Peer { return &Peer{fd} }

// Close closes the socket. A nil Peer has none.
func (p *Peer) Close() {
	if p != nil {
		_ = unix.Close(p.fd) // no buffered data could fail to be written
	}
}

// peek fills parts with the beginning of the next message, without removing it, and returns the
// length of the whole message in bytes. 0 is the end of the stream.
func (p *Peer) peek(parts *guestmem.Vector) (n int, err error) {
	return parts.Receive(p.fd, unix.MSG_PEEK|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
}

// read removes the next message and stores as much of it as fits into parts. There must be one.
func (p *Peer) read(parts *guestmem.Vector) error {
	_, err := parts.Receive(p.fd, unix.MSG_DONTWAIT)
	return err
}

// write sends parts as one message.
func (p *Peer) write(parts *guestmem.Vector) error {
	return parts.Send(p.fd, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}
