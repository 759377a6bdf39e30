package vsock

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/rawcall"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

var (
	errShortPacket = errors.New("vsock packet shorter than its header says")
	errShortBuffer = errors.New("vsock receive buffer without room for a header and data")
)

// serveGuest handles new receive buffers and the guest's packets.
func (d *Device) serveGuest() (more bool, err error) {
	if err := d.rx.DisableNotify(); err != nil {
		return false, err
	}
	if err := d.useBuffers(); err != nil {
		return false, err
	}
	if err := d.tx.DisableNotify(); err != nil {
		return false, err
	}
	for i := 0; i < queueSize && !d.transport.Wanted(); i++ {
		c, err := pop(d.tx)
		if err != nil {
			return false, err
		}
		if c == nil {
			return false, nil
		}
		head := c.Head
		if err := d.receive(c); err != nil {
			return false, err
		}
		if err := d.tx.Push(head, 0); err != nil {
			return false, err
		}
	}
	return true, nil
}

// useBuffers uses new receive buffers, first for control packets and then for data.
func (d *Device) useBuffers() error {
	if err := d.flush(); err != nil {
		return err
	}
	waiting := d.stalled
	d.stalled = nil
	for _, c := range waiting {
		c.stalled = false
	}
	for _, c := range waiting {
		if err := d.pump(c); err != nil {
			return err
		}
	}
	return nil
}

// receive handles one packet of the guest.
func (d *Device) receive(chain *virtq.Chain) error {
	var raw [headerSize]byte
	if chain.CopyIn(raw[:]) != headerSize {
		return errShortPacket
	}
	h := decodeHeader(&raw)
	if h.length > chain.ReadLen {
		return errShortPacket
	}
	c := d.conns[connKey{host: h.dstPort, guest: h.srcPort}]
	if h.kind != typeStream || h.dstCID != hostCID || h.srcCID != uint64(d.cfg.GuestCID) {
		return d.refuse(&h)
	}
	if c == nil {
		if h.op == opRequest {
			return d.dial(&h)
		}
		return d.refuse(&h)
	}
	c.peerAlloc, c.peerFwd = h.bufAlloc, h.fwdCount
	if c.credit() > 0 {
		c.askedCredit = false
	}
	switch h.op {
	case opResponse:
		return d.accepted(c)
	case opRST:
		d.remove(c)
		return nil
	case opShutdown:
		return d.guestShutdown(c, h.flags)
	case opRW:
		d.views = virtq.Slice(d.views[:0], chain.Readable, 0, int(h.length))
		return d.toHost(c, d.views, h.length)
	case opCreditUpdate:
	case opCreditRequest:
		if err := d.owe(c, oweCredit); err != nil {
			return err
		}
	default:
		return d.drop(c)
	}
	return d.pump(c)
}

// refuse sends an RST in response to a packet that belongs to no connection.
func (d *Device) refuse(h *header) error {
	if h.op == opRST {
		return nil
	}
	return d.reject(header{srcCID: h.dstCID, dstCID: h.srcCID, srcPort: h.dstPort, dstPort: h.srcPort,
		kind: h.kind, op: opRST})
}

// reject sends an RST that belongs to no connection. If there is no receive buffer, reject queues
// the RST.
func (d *Device) reject(h header) error {
	if len(d.orphans) < maxOrphans {
		d.orphans = append(d.orphans, h)
	}
	return d.flush()
}

// dial opens a connection that the guest has requested.
func (d *Device) dial(h *header) error {
	if !d.roomForConn() {
		return d.refuse(h)
	}
	fd, err := d.cfg.Dial(h.dstPort)
	if err != nil {
		return d.refuse(h)
	}
	c := d.newConn(fd)
	c.key, c.state = connKey{host: h.dstPort, guest: h.srcPort}, stateOpen
	c.peerAlloc, c.peerFwd = h.bufAlloc, h.fwdCount
	d.conns[c.key] = c
	if err := d.owe(c, oweResponse); err != nil {
		return err
	}
	return d.pump(c)
}

// accepted handles the guest's RESPONSE, which accepts a host client's connection.
func (d *Device) accepted(c *conn) error {
	if c.state != stateConnecting {
		return d.drop(c)
	}
	line := appendOK(make([]byte, 0, 16), c.key.host)
	if n, err := rawcall.Write(c.fd, line); err != nil || n != len(line) {
		return d.drop(c)
	}
	c.state = stateOpen
	return d.pump(c)
}

// guestShutdown handles a shutdown packet of the guest. The packet closes one direction or both.
func (d *Device) guestShutdown(c *conn, flags uint32) error {
	if c.state != stateOpen {
		return d.drop(c)
	}
	c.guestShut |= flags & shutdownBoth
	if c.guestShut&shutdownReceive != 0 {
		_ = unix.Shutdown(c.fd, unix.SHUT_RD) // fails only if the client has hung up, which reads and writes will show
	}
	return d.drained(c)
}

// toHost writes n bytes of the guest's data to the host's socket. It stores the bytes that the
// socket does not accept.
func (d *Device) toHost(c *conn, views [][]byte, n uint32) error {
	if c.state == stateClosing {
		return nil // the guest does not know of the close yet
	}
	if c.state != stateOpen || c.guestShut&shutdownSend != 0 || n > bufAlloc-uint32(len(c.pending)) {
		return d.drop(c)
	}
	if len(c.pending) == 0 {
		k, err := writev(c.fd, views)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			return d.drop(c)
		}
		c.forwarded += uint32(k)
		if uint32(k) < n {
			views = virtq.Slice(nil, views, k, int(n))
		} else {
			views = nil
		}
	}
	for _, v := range views {
		c.pending = append(c.pending, v...)
	}
	return d.afterDelivery(c)
}

// drain writes the data that toHost has stored.
func (d *Device) drain(c *conn) error {
	n, err := writev(c.fd, [][]byte{c.pending})
	if errors.Is(err, unix.EAGAIN) {
		return nil
	}
	if err != nil {
		return d.drop(c)
	}
	c.forwarded += uint32(n)
	if c.pending = c.pending[n:]; len(c.pending) == 0 {
		c.pending = nil
		return d.drained(c)
	}
	return d.afterDelivery(c)
}

// drained checks whether all of the guest's data on c has been written to the host's socket. If so,
// and if the guest has shut down c or its sending direction, drained shuts down the host's socket
// in the same way.
func (d *Device) drained(c *conn) error {
	if len(c.pending) == 0 && c.guestShut == shutdownBoth {
		return d.drop(c) // this RST confirms the shutdown
	}
	if len(c.pending) == 0 && c.guestShut&shutdownSend != 0 {
		_ = unix.Shutdown(c.fd, unix.SHUT_WR) // see guestShutdown
	}
	return d.afterDelivery(c)
}

// afterDelivery tells the guest how much room the device has, if half of the buffer has become free
// since the guest was last told. Then afterDelivery continues with the other direction.
func (d *Device) afterDelivery(c *conn) error {
	if c.forwarded-c.advertised >= bufAlloc/2 {
		if err := d.owe(c, oweCredit); err != nil {
			return err
		}
	}
	return d.pump(c)
}
