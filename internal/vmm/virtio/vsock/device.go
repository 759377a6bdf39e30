// Package vsock implements the virtio socket device (virtio 1.2 §5.10). The device makes stream
// connections between guest ports and unix sockets of the host.
//
// From host to guest, the device accepts connections on a donated listening socket. A client sends
// "CONNECT <guest port>\n". When the guest has accepted the connection, the client receives "OK
// <host port>\n", and then the stream is raw. If the guest refuses, the client sees the end of the
// stream. From guest to host, the device gets a socket from the function Config.Dial for each
// connection to CID 2.
//
// A fork loses all connections. If the saved guest had connections, the restored device sends
// VIRTIO_VSOCK_EVENT_TRANSPORT_RESET. The driver drops its old connections, and then returns the
// buffer of the event. Until then, the driver would also drop new connections. So the device leaves
// host clients in the listener's backlog, and the guest's packets in their queue.
//
// One goroutine waits for all host sockets, through an epoll descriptor. The transport's goroutine
// serves the queues. Both goroutines hold the run lock while they work, and never block. A slow
// host client fills only the buffer of its own connection, because the guest may send at most
// bufAlloc bytes that the client has not read. The package dials nothing, opens no path, and moves
// payload directly between sockets and guest memory.
package vsock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

const (
	hostCID = 2 // VMADDR_CID_HOST, virtio 1.2 §5.10.4

	queueSize = 128
	queueRX   = 0 // device to driver
	queueTX   = 1 // driver to device
	queueEvnt = 2

	// bufAlloc is the number of bytes from the guest that a connection buffers while the host
	// client does not read.
	bufAlloc = 64 << 10

	// maxData is the maximum length of data in one packet to the guest. A packet may have less,
	// because the guest's buffers may be smaller.
	maxData = 64 << 10

	// maxConns is the maximum number of connections of a VM, including those in state handshake.
	maxConns = 256

	// maxOrphans is the maximum number of queued RST packets that answer packets without a
	// connection. Above this limit, the device does not answer such packets.
	maxOrphans = 128
)

// eventTransportReset is VIRTIO_VSOCK_EVENT_TRANSPORT_RESET (virtio 1.2 §5.10.6.7).
const eventTransportReset = 0

// Config configures a device.
type Config struct {
	GuestCID uint32

	// Listener is a listening unix stream socket. The device owns it.
	Listener *os.File

	// Dial returns a unix stream socket in non-blocking mode for a stream that the guest opens to a
	// port of the host. The device then owns the socket. If Dial returns an error, the device
	// refuses the connection. Dial must not block.
	Dial func(port uint32) (fd int, err error)
}

// Device is a vsock device. It implements virtio.Device. Its fields are guarded by the run lock.
type Device struct {
	cfg  Config
	lfd  int // descriptor of cfg.Listener
	poll *virtio.Poller
	done chan struct{} // closed when the poll goroutine has ended; nil before the first Activate

	transport     virtio.Transport
	rx, tx, event *virtq.Queue
	listening     bool // whether the listener is in the poller

	resetDue  bool   // whether a transport reset event must be sent
	holding   bool   // whether the event was sent and the driver has not returned the event's buffer yet
	holdUntil uint16 // available index of the event queue at which the driver has returned the buffer

	conns    map[connKey]*conn
	byFD     map[int32]*conn // connections with a host socket
	nextTag  int32           // tag of the next connection
	nextPort uint32          // the next host port to use; starts at a random value, see New
	owing    []*conn         // connections with control packets to send, in the order of sending
	orphans  []header        // queued RSTs that belong to no connection
	stalled  []*conn         // connections with data from the host, but without a receive buffer
	views    [][]byte        // reused list of views

	check     *time.Timer   // timer of the next checkHungUp; nil if none is due
	checkTime time.Duration // the constant checkTime, except in tests
}

// New returns a device for cfg.
func New(cfg Config) (*Device, error) {
	if cfg.GuestCID <= hostCID {
		return nil, fmt.Errorf("vsock: guest CID %d is reserved, use 3 or more", cfg.GuestCID)
	}
	lfd := int(cfg.Listener.Fd())
	if err := unix.SetNonblock(lfd, true); err != nil {
		return nil, fmt.Errorf("vsock listener: %w", err)
	}
	p, err := virtio.NewPoller()
	if err != nil {
		return nil, err
	}
	d := &Device{cfg: cfg, lfd: lfd, poll: p, checkTime: checkTime}
	// Start at a random port. A restored guest may still have sockets of connections from the first
	// ports of an earlier device. Linux keeps a socket for seconds after its connection has ended,
	// and refuses another connection with the same ports.
	d.nextPort = firstHostPort + rand.Uint32N(lastHostPort-firstHostPort+1)
	d.forget()
	return d, nil
}

// Info implements virtio.Device.
func (d *Device) Info() virtio.Info {
	return virtio.Info{ID: virtio.IDVsock, QueueSizes: []uint16{queueSize, queueSize, queueSize}}
}

// ReadConfig implements virtio.Device. The configuration is the guest's CID (virtio 1.2 §5.10.4).
func (d *Device) ReadConfig(off uint64, p []byte) {
	var c [8]byte
	binary.LittleEndian.PutUint64(c[:], uint64(d.cfg.GuestCID))
	clear(p)
	if off < uint64(len(c)) {
		copy(p, c[off:])
	}
}

// Activate implements virtio.Device.
func (d *Device) Activate(t virtio.Transport, queues []*virtq.Queue, _ uint64) error {
	for i, q := range queues {
		if q == nil {
			return fmt.Errorf("queue %d is not set up", i)
		}
	}
	d.transport = t
	d.rx, d.tx, d.event = queues[queueRX], queues[queueTX], queues[queueEvnt]
	if d.done == nil {
		d.done = make(chan struct{})
		go d.serveHost(t)
	}
	return nil
}

// Reset implements virtio.Device. It closes all connections.
func (d *Device) Reset() {
	for _, c := range d.byFD {
		d.closeFD(c)
	}
	if d.listening {
		d.poll.Remove(d.lfd)
		d.listening = false
	}
	if d.check != nil {
		d.check.Stop()
		d.check = nil
	}
	d.resetDue, d.holding = false, false
	d.rx, d.tx, d.event, d.transport = nil, nil, nil, nil
	d.forget()
}

// forget removes all connections.
func (d *Device) forget() {
	d.conns, d.byFD = make(map[connKey]*conn), make(map[int32]*conn)
	d.owing, d.orphans, d.stalled = nil, nil, nil
}

// Close closes the listener and ends the goroutine. Preconditions: the transport is closed.
func (d *Device) Close() error {
	err := errors.Join(d.poll.Close(), d.cfg.Listener.Close())
	if d.done != nil {
		<-d.done
	}
	return err
}

// Notify implements virtio.Device.
func (d *Device) Notify() (more bool, err error) {
	ready, err := d.mayConnect()
	if err != nil {
		return false, err
	}
	if ready {
		if more, err = d.serveGuest(); err != nil {
			return false, err
		}
	}
	return more, d.signal()
}

// mayConnect reports whether the device may open connections and handle the guest's packets. After
// a transport reset, the device must not do so until the driver has handled the reset.
func (d *Device) mayConnect() (bool, error) {
	if d.resetDue {
		sent, err := d.sendReset()
		if err != nil || !sent {
			return false, err
		}
	}
	if d.holding {
		idx, err := d.event.AvailIdx()
		if err != nil || int16(idx-d.holdUntil) < 0 {
			return false, err
		}
		d.holding = false
	}
	if !d.listening {
		if err := d.poll.Add(d.lfd, unix.EPOLLIN, 0); err != nil {
			return false, err
		}
		d.listening = true
	}
	return true, nil
}

// sendReset sends the transport reset event. It also asks the driver to kick when the driver has
// handled the event. If the driver has not provided a buffer yet, sendReset returns false.
func (d *Device) sendReset() (bool, error) {
	c, err := pop(d.event)
	if err != nil || c == nil {
		return false, err
	}
	var event [4]byte
	binary.LittleEndian.PutUint32(event[:], eventTransportReset)
	if c.CopyOut(event[:]) != len(event) {
		return false, errors.New("event buffer too short")
	}
	idx, err := d.event.AvailIdx()
	if err != nil {
		return false, err
	}
	// If the snapshot was taken while an earlier reset was pending, the queue contains two resets,
	// and the driver returns two buffers.
	if d.holding && int16(idx-d.holdUntil) < 0 {
		idx = d.holdUntil
	}
	d.resetDue, d.holding, d.holdUntil = false, true, idx+1
	// Ask for the kick before sending the event. If the device asked later, the driver could have
	// returned the buffer already, and there would be no kick.
	if err := d.event.NotifyAfter(idx); err != nil {
		return false, err
	}
	return true, d.event.Push(c.Head, uint32(len(event)))
}

// pop takes a chain from q. If there is none, it returns nil. The driver will then kick when it
// adds a chain.
func pop(q *virtq.Queue) (*virtq.Chain, error) {
	for {
		c, err := q.Pop()
		if err != nil || c != nil {
			return c, err
		}
		if pending, err := q.EnableNotify(); err != nil || !pending {
			return nil, err
		}
	}
}

// signal raises an interrupt if the driver wants an interrupt for the chains that were pushed.
func (d *Device) signal() error {
	for _, q := range [...]*virtq.Queue{d.rx, d.tx, d.event} {
		if err := d.transport.Interrupt(q); err != nil {
			return err
		}
	}
	return nil
}
