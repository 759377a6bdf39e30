package vsock

import (
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/rawcall"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

// connKey identifies a connection by its two ports. The CIDs are the same for all connections.
type connKey struct{ host, guest uint32 }

// States of a connection:
//
//	handshake ──CONNECT──▶ connecting ──RESPONSE──▶ open ──host gone──▶ closing ──RST──▶ (removed)
//
// A connection that the guest opens begins in state open. In every state, the connection is removed
// at once if the guest sends an RST or violates a rule.
type connState uint8

const (
	// the client has not sent its whole CONNECT line, and the connection is not in Device.conns yet
	stateHandshake  connState = iota
	stateConnecting           // a REQUEST was sent to the guest
	stateOpen
	stateClosing // the host's socket is closed; the guest knows this, and must answer with an RST
)

// Control packets that must be sent to the guest, as bits of conn.owed. Lower bits are sent first.
const (
	oweRequest uint8 = 1 << iota
	oweResponse
	oweCredit
	oweCreditRequest
	oweShutdown
)

// conn is one stream between a socket of the host and the guest.
type conn struct {
	key   connKey
	fd    int   // the host's socket, non-blocking; -1 if closed
	tag   int32 // of the socket's events; other connections have other tags
	state connState
	line  []byte // in stateHandshake: the beginning of the client's CONNECT line

	armed  bool   // whether fd is in the poller
	events uint32 // events that the poller waits for on fd

	hungUp bool   // whether the poller has reported that the client on the host has closed its socket
	idle   int    // number of checks in a row in which the guest had taken no data, see checkHungUp
	before uint32 // value of c.sent at the previous check, or at the hang-up

	// Data from guest to host. The buffer pending holds at most bufAlloc bytes that the host's
	// socket has not accepted.
	pending    []byte
	forwarded  uint32 // number of bytes that the host's socket has accepted, modulo 1<<32 (fwd_cnt)
	advertised uint32 // latest value of c.forwarded that was sent to the guest
	guestShut  uint32 // flags of the guest's shutdown packets

	// Data from host to guest.
	peerAlloc   uint32 // size of the guest's buffer, in bytes
	peerFwd     uint32 // number of bytes that the guest has taken from its buffer, modulo 1<<32
	sent        uint32 // number of bytes sent to the guest, modulo 1<<32
	hostEOF     bool   // whether the host's socket will send no more data
	askedCredit bool   // whether a credit request was sent and not answered
	stalled     bool   // whether the connection is in Device.stalled

	owed   uint8 // bits of the control packets that must be sent
	listed bool  // whether the connection is in Device.owing
	gone   bool  // whether the connection was removed; Device.owing and Device.stalled may still contain it
}

// credit returns how many more bytes fit into the guest's buffer.
func (c *conn) credit() uint32 {
	used := c.sent - c.peerFwd
	if used >= c.peerAlloc {
		return 0
	}
	return c.peerAlloc - used
}

// readable reports whether the state of the connection permits sending data from the host to the
// guest.
func (c *conn) readable() bool {
	return c.state == stateOpen && !c.gone && c.owed == 0 && !c.hostEOF && c.guestShut&shutdownReceive == 0
}

// burst is the maximum number of packets of one connection that are sent in a row while other
// connections wait.
const burst = 16

// pump moves data from the host's socket to the guest. It stops when there is no data, no receive
// buffer or no credit, when it has sent the maximum number of packets (burst), or when a pause
// waits. Then it sets the events for which the poller waits. If data is left in the socket, the
// poller reports the socket again.
func (d *Device) pump(c *conn) error {
	for range burst {
		if !c.readable() || c.stalled {
			break
		}
		if c.credit() == 0 {
			if !c.askedCredit {
				c.askedCredit = true
				if err := d.owe(c, oweCreditRequest); err != nil {
					return err
				}
			}
			break
		}
		if d.transport.Wanted() {
			break
		}
		again, err := d.pumpOne(c)
		if err != nil {
			return err
		}
		if !again {
			break
		}
	}
	d.arm(c)
	return nil
}

// pumpOne reads from the host's socket into one receive buffer of the guest. It returns true if
// there may be more data.
func (d *Device) pumpOne(c *conn) (again bool, err error) {
	chain, err := pop(d.rx)
	if err != nil {
		return false, err
	}
	if chain == nil {
		c.stalled = true
		d.stalled = append(d.stalled, c)
		return false, nil
	}
	if chain.WriteLen <= headerSize {
		return false, errShortBuffer
	}
	d.views = virtq.Slice(d.views[:0], chain.Writable, headerSize, int(min(c.credit(), maxData)))
	n, err := readv(c.fd, d.views)
	if err != nil || n == 0 {
		d.rx.Unpop()
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false, nil
		case err == nil:
			return false, d.endOfHost(c)
		}
		return false, d.drop(c)
	}
	h := d.header(c, opRW)
	h.length = uint32(n)
	b := h.encode()
	chain.CopyOut(b[:])
	c.sent += uint32(n)
	return true, d.rx.Push(chain.Head, headerSize+uint32(n))
}

// header returns the header of a packet on c. Every header also tells the guest how much room the
// device has for c.
func (d *Device) header(c *conn, op uint16) header {
	c.advertised = c.forwarded
	return header{srcCID: hostCID, dstCID: uint64(d.cfg.GuestCID), srcPort: c.key.host, dstPort: c.key.guest,
		kind: typeStream, op: op, bufAlloc: bufAlloc, fwdCount: c.forwarded}
}

// endOfHost handles the end of the host's data. If the client on the host has closed only its
// sending direction, it can still read.
func (d *Device) endOfHost(c *conn) error {
	c.hostEOF = true
	if !rawcall.HungUp(c.fd) {
		return d.owe(c, oweShutdown)
	}
	return d.hostGone(c)
}

// hostGone is called when the client on the host has closed its socket.
func (d *Device) hostGone(c *conn) error {
	d.closeFD(c)
	c.pending, c.hostEOF, c.state = nil, true, stateClosing
	return d.owe(c, oweShutdown)
}

// owe notes that c must send a control packet to the guest, and sends the packets that can be sent
// immediately.
func (d *Device) owe(c *conn, what uint8) error {
	c.owed |= what
	if !c.listed {
		if len(d.owing) >= maxConns { // the guest may accept no packets, so the list must be bounded
			d.owing = slices.DeleteFunc(d.owing, func(c *conn) bool { return c.gone })
		}
		c.listed = true
		d.owing = append(d.owing, c)
	}
	return d.flush()
}

// flush sends control packets as long as there are receive buffers.
func (d *Device) flush() error {
	for i := range d.orphans {
		if sent, err := d.send(&d.orphans[i]); err != nil || !sent {
			d.orphans = slices.Delete(d.orphans, 0, i)
			return err
		}
	}
	d.orphans = d.orphans[:0]
	for i, c := range d.owing {
		if sent, err := d.pay(c); err != nil || !sent {
			d.owing = slices.Delete(d.owing, 0, i)
			return err
		}
		c.listed = false
		d.arm(c)
	}
	d.owing = d.owing[:0]
	return nil
}

// pay sends the control packets of c. It returns false if the receive buffers ran out.
func (d *Device) pay(c *conn) (bool, error) {
	for c.owed != 0 && !c.gone {
		bit := c.owed & -c.owed
		h := d.control(c, bit)
		if sent, err := d.send(&h); err != nil || !sent {
			return false, err
		}
		c.owed &^= bit
	}
	return true, nil
}

// control returns the header of the control packet with the given bit.
func (d *Device) control(c *conn, bit uint8) header {
	switch bit {
	case oweRequest:
		return d.header(c, opRequest)
	case oweResponse:
		return d.header(c, opResponse)
	case oweCredit:
		return d.header(c, opCreditUpdate)
	case oweCreditRequest:
		return d.header(c, opCreditRequest)
	}
	h := d.header(c, opShutdown)
	if h.flags = shutdownSend; c.state == stateClosing {
		h.flags = shutdownBoth
	}
	return h
}

// send puts a packet without data into the receive queue, or returns false if there is no buffer.
func (d *Device) send(h *header) (bool, error) {
	chain, err := pop(d.rx)
	if err != nil || chain == nil {
		return false, err
	}
	b := h.encode()
	if chain.CopyOut(b[:]) != headerSize {
		return false, errShortBuffer
	}
	return true, d.rx.Push(chain.Head, headerSize)
}

// drop ends a connection, and sends an RST to the guest if the guest knows the connection.
func (d *Device) drop(c *conn) error {
	known := c.state != stateHandshake && c.owed&oweRequest == 0
	h := d.header(c, opRST)
	d.remove(c)
	if !known {
		return nil
	}
	return d.reject(h)
}

// remove removes a connection and closes its host end.
func (d *Device) remove(c *conn) {
	d.closeFD(c)
	c.gone, c.pending = true, nil
	if d.conns[c.key] == c {
		delete(d.conns, c.key)
	}
}

func (d *Device) closeFD(c *conn) {
	if c.fd < 0 {
		return
	}
	if c.armed {
		d.poll.Remove(c.fd)
		c.armed = false
	}
	delete(d.byFD, int32(c.fd))
	_ = rawcall.Close(c.fd)
	c.fd = -1
}

// arm makes the poller wait for the events that c can use now. The poller always reports a hang-up,
// again and again. So if the hang-up is known and c can use no other event, arm removes the socket
// from the poller.
func (d *Device) arm(c *conn) {
	if c.fd < 0 {
		return
	}
	var events uint32
	if c.state == stateHandshake || c.readable() && !c.stalled && c.credit() > 0 {
		events |= unix.EPOLLIN
	}
	if len(c.pending) > 0 {
		events |= unix.EPOLLOUT
	}
	watch := !c.hungUp || events != 0
	switch {
	case !watch && c.armed:
		d.poll.Remove(c.fd)
	case watch && !c.armed:
		if d.poll.Add(c.fd, events, c.tag) != nil {
			d.remove(c) // the kernel is out of memory; the guest notices the removal when it sends
			return
		}
	case watch && events != c.events:
		d.poll.Change(c.fd, events, c.tag)
	}
	c.armed, c.events = watch, events
}

// When a client on the host closes its socket, the socket may contain data that the guest has not
// taken. The kernel counts this data as memory of the client. Every checkTime the device checks the
// connections with such data. It closes a connection whose guest takes nothing in maxIdle checks in
// a row (30 to 40 seconds). A guest that is only busy takes data within that time. The device
// counts checks instead of time, because no check happens while the machine is paused.
const (
	checkTime = 10 * time.Second
	maxIdle   = 4
)

// checkLater starts the timer of the next check, unless the timer already runs.
func (d *Device) checkLater() {
	if d.check != nil {
		return
	}
	t := d.transport
	var timer *time.Timer
	timer = time.AfterFunc(d.checkTime, func() {
		if !t.Enter() {
			return
		}
		defer t.Leave()
		if d.check != timer {
			return // the device was reset
		}
		if err := d.checkHungUp(); err != nil {
			t.Fail(err)
		}
	})
	d.check = timer
}

// checkHungUp checks all connections whose client has closed its socket.
func (d *Device) checkHungUp() error {
	d.check = nil
	for _, c := range d.byFD {
		if !c.hungUp {
			continue
		}
		if c.sent != c.before {
			c.idle, c.before = 0, c.sent
		} else if c.idle++; c.idle >= maxIdle {
			if err := d.hostGone(c); err != nil {
				return err
			}
			continue
		}
		d.checkLater()
	}
	return d.signal()
}
