// Package net implements the virtio network device (virtio 1.2 §5.1). The device moves Ethernet
// frames between a driver and a frame socket (package frame). The process at the other end of the
// socket is called the peer.
//
// The device does not parse frames, knows no address except the address in its configuration, and
// has no control queue. It also has no link status. If there is no peer, the driver does not
// notice, and the device drops the frames.
//
//   - Checksums and TCP segmentation are left to the receiver of a frame. If a frame's header is
//     valid for the frame, the device passes on the header and the frame. Otherwise it drops the
//     frame and returns the buffer.
//   - If the peer accepts no more frames, frames stay in the driver's queue. If the driver has no
//     receive buffers, frames stay in the socket. If the peer has hung up, the device drops the
//     peer.
//   - Payload moves between the socket and guest memory without a copy in this process.
//
// One goroutine waits for the socket, through an epoll descriptor. The transport's goroutine serves
// the queues. Both goroutines hold the run lock while they work, and never block. The device
// starts the socket's goroutine when the driver sends its first frame to a peer. The device receives
// nothing before that, so a guest that never uses the network costs only the epoll descriptor.
package net

import (
	"encoding/binary"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

// Feature bits (virtio 1.2 §5.1.3).
const (
	FCsum      uint64 = 1 << 0  // VIRTIO_NET_F_CSUM
	FGuestCsum uint64 = 1 << 1  // VIRTIO_NET_F_GUEST_CSUM
	FMTU       uint64 = 1 << 3  // VIRTIO_NET_F_MTU
	FMAC       uint64 = 1 << 5  // VIRTIO_NET_F_MAC
	FGuestTSO4 uint64 = 1 << 7  // VIRTIO_NET_F_GUEST_TSO4
	FHostTSO4  uint64 = 1 << 11 // VIRTIO_NET_F_HOST_TSO4
	FMrgRxbuf  uint64 = 1 << 15 // VIRTIO_NET_F_MRG_RXBUF
)

const (
	queueRX = 0 // device to driver
	queueTX = 1 // driver to device

	// queueSize is the usual size in other VMMs. Linux fills the receive queue with buffers of a
	// page or less.
	queueSize = 256

	// burst is the maximum number of frames that the device moves in one direction before it does
	// other work.
	burst = 64

	// maxParts is the maximum number of parts of one message (Linux's UIO_MAXIOV).
	maxParts = 1024
)

// Device is a network device. It implements virtio.Device. Its fields are guarded by the run lock.
type Device struct {
	poll *virtio.Poller
	done chan struct{} // closed when the poll goroutine has ended; nil before the first frame

	peer   *Peer  // nil if there is no peer
	polled uint32 // events of the peer's socket for which the poller waits; 0 if it waits for none

	transport virtio.Transport
	rx, tx    *virtq.Queue
	features  uint64
	awake     bool // whether the driver has sent a frame
	blocked   bool // whether frames wait in tx because the socket was full
	stalled   bool // whether frames wait in the socket because receive buffers ran out

	raw   [frame.HeaderBytes]byte // reused buffer for the header of the current frame
	parts guestmem.Vector         // reused list of the current frame's parts in guest memory
	used  []virtq.Used            // reused list of the current frame's receive buffers
	first [][]byte                // reused list of views of the first receive buffer
}

// New returns a device without a peer. It creates the poller, because a VMM that has a machine can
// no longer create pollers.
func New() (*Device, error) {
	p, err := virtio.NewPoller()
	if err != nil {
		return nil, err
	}
	return &Device{poll: p}, nil
}

// SetPeer replaces the peer and closes the previous one. A nil peer disconnects the device.
// Preconditions: the run lock is held, or the transport is quiesced. Call Notify afterwards if the
// device is running.
func (d *Device) SetPeer(p *Peer) {
	d.dropPeer()
	d.peer = p
}

// dropPeer closes and removes the peer. If the device gets no other peer, it drops the waiting
// frames when it next serves the queue.
func (d *Device) dropPeer() {
	d.unwatch()
	d.peer.Close()
	d.peer, d.blocked = nil, false
}

// Info implements virtio.Device.
func (d *Device) Info() virtio.Info {
	const features = FCsum | FGuestCsum | FMTU | FMAC | FGuestTSO4 | FHostTSO4 | FMrgRxbuf
	return virtio.Info{ID: virtio.IDNet, Features: features, QueueSizes: []uint16{queueSize, queueSize}}
}

// ReadConfig implements virtio.Device. The configuration consists of address and MTU (virtio 1.2
// §5.1.4).
func (d *Device) ReadConfig(off uint64, p []byte) {
	var c [12]byte
	copy(c[0:], frame.GuestMAC[:])
	binary.LittleEndian.PutUint16(c[10:], frame.MTU)
	clear(p)
	if off < uint64(len(c)) {
		copy(p, c[off:])
	}
}

// Activate implements virtio.Device.
func (d *Device) Activate(t virtio.Transport, queues []*virtq.Queue, features uint64) error {
	for i, q := range queues {
		if q == nil {
			return fmt.Errorf("queue %d is not set up", i)
		}
	}
	d.transport, d.features = t, features
	d.rx, d.tx = queues[queueRX], queues[queueTX]
	return nil
}

// Reset implements virtio.Device. It keeps the peer, which does not depend on the driver.
func (d *Device) Reset() {
	d.unwatch()
	d.transport, d.rx, d.tx, d.features = nil, nil, nil, 0
	d.awake, d.blocked, d.stalled = false, false, false
	d.parts, d.used, d.first = guestmem.Vector{}, nil, nil
}

// Close closes the socket and ends the goroutine. Preconditions: the transport is closed.
func (d *Device) Close() error {
	d.SetPeer(nil)
	err := d.poll.Close()
	if d.done != nil {
		<-d.done
	}
	return err
}

// Notify implements virtio.Device. If there are no frames, it does not write to guest memory,
// because in a fork the kernel would have to copy the page.
func (d *Device) Notify() (more bool, err error) {
	d.stalled = false // the driver may have added buffers
	return d.serve()
}

// serve moves frames in both directions.
func (d *Device) serve() (more bool, err error) {
	sending, err := d.transmit()
	if err != nil {
		return false, err
	}
	blocked := d.blocked
	receiving, err := d.receive()
	if err != nil {
		return false, err
	}
	d.watch()
	// If receive has dropped the peer, the frames that wait for the peer can be dropped now. No
	// kick will arrive for these frames.
	freed := blocked && !d.blocked
	for _, q := range [...]*virtq.Queue{d.rx, d.tx} {
		if err := d.transport.Interrupt(q); err != nil {
			return false, err
		}
	}
	return sending || receiving || freed, nil
}

// servePeer is the socket's goroutine. It waits for events of the socket and moves frames.
func (d *Device) servePeer(t virtio.Transport) {
	defer close(d.done)
	for {
		if _, err := d.poll.Wait(); err != nil {
			return // the poller is closed
		}
		for d.serveOnce(t) {
			runtime.Gosched()
		}
	}
}

// serveOnce tries to move frames in both directions, whatever the event was. It returns true if
// more work is left.
func (d *Device) serveOnce(t virtio.Transport) bool {
	if !t.Enter() {
		return false // the device was reset after the event
	}
	defer t.Leave()
	d.blocked = false
	more, err := d.serve()
	if err != nil {
		t.Fail(err)
		return false
	}
	return more
}

// wake makes the device receive. It is called when the driver sends its first frame.
func (d *Device) wake() {
	if d.done == nil {
		d.done = make(chan struct{})
		go d.servePeer(d.transport)
	}
	d.awake = true
}

// watch makes the poller wait for the events that the device can use now. If the device can use no
// event, watch removes the socket from the poller. If the socket stayed there, the poller would
// report a hang-up again and again.
func (d *Device) watch() {
	if d.peer == nil || !d.awake {
		return
	}
	var events uint32
	if !d.stalled {
		events |= unix.EPOLLIN
	}
	if d.blocked {
		events |= unix.EPOLLOUT
	}
	switch {
	case events == d.polled:
	case events == 0:
		d.unwatch()
	case d.polled != 0:
		d.poll.Change(d.peer.fd, events, 0)
		d.polled = events
	default:
		if d.poll.Add(d.peer.fd, events, 0) != nil {
			d.dropPeer() // the host is out of memory; a socket that is not watched is useless
			return
		}
		d.polled = events
	}
}

// unwatch removes the socket from the poller.
func (d *Device) unwatch() {
	if d.polled != 0 {
		d.poll.Remove(d.peer.fd)
		d.polled = 0
	}
}
