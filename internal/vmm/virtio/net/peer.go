package net

import (
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame"
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

// peek returns the header of the next message and the length of all of it in bytes. 0 is the end of
// the stream.
func (p *Peer) peek(header *[frame.HeaderBytes]byte) (n int, err error) {
	err = retry(func() (err error) {
		n, _, err = unix.Recvfrom(p.fd, header[:], unix.MSG_PEEK|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		return err
	})
	return n, err
}

// read takes the next message, as far as views have room for it. There must be one.
func (p *Peer) read(views [][]byte) error {
	return retry(func() error {
		_, _, _, _, err := unix.RecvmsgBuffers(p.fd, views, nil, unix.MSG_DONTWAIT)
		return err
	})
}

// write sends views as one message.
func (p *Peer) write(views [][]byte) error {
	return retry(func() error {
		_, err := unix.SendmsgBuffers(p.fd, views, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return err
	})
}

// retry makes a system call until no signal interrupts it.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
