package stack

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gvisor "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/forkd/forkd/internal/net/inspect"
	"github.com/forkd/forkd/internal/proto/frame"
)

const (
	// queueBytes bounds the memory of packets that wait for room in the frame socket. It includes
	// gVisor's record of each packet, which is larger than a small packet. Packets above the limit
	// are dropped, as a switch would do, and TCP then sends more slowly.
	queueBytes = 1 << 20
	// smallSend is the size of a frame socket's send buffer, in bytes, if the sandbox needs no
	// larger buffer or the room for links is full. The kernel doubles the size, so the longest
	// message fits.
	smallSend = 33 << 10
	// smallBytes is the maximum memory of a frame socket with such a buffer. It is larger than the
	// buffer, because the kernel accepts a whole message as long as the buffer is not full.
	smallBytes = 2*smallSend + 72<<10
	// growBytes is the additional memory of a frame socket with a buffer of frame.BufferBytes.
	growBytes = 2 * (frame.BufferBytes - smallSend)
	// fewBytes is the part of queueBytes that a sandbox has even if the room for links is full. The
	// longest packet fits into it.
	fewBytes = 72 << 10

	linkHeaderBytes = frame.HeaderBytes + header.EthernetMinimumSize

	// gsoBytes is the maximum payload of a TCP segment for the guest. Segments may be longer than
	// the MTU, because the guest accepts any IPv4 packet.
	gsoBytes = 65535 - header.IPv4MinimumSize - header.TCPHeaderMaximumSize
)

// link is the gVisor link endpoint on a frame socket. Its methods never block. Packets for which
// the socket has no room are queued. A goroutine, which exists only while packets are queued,
// writes them.
type link struct {
	host *Host  // host.links counts what this link holds: see takeLocked, growLocked and close
	id   string // id of the sandbox
	file *os.File
	raw  syscall.RawConn

	// validated is the value that Capabilities reports about the checksums of received packets. The
	// goroutine that delivers a packet sets this value before the delivery. The stack calls
	// Capabilities for each packet, in the same goroutine.
	validated  atomic.Bool
	dropped    *atomic.Uint64
	dispatcher gvisor.NetworkDispatcher

	mu      sync.Mutex
	queue   []*gvisor.PacketBuffer
	queued  int  // bytes of the packets in queue
	writing bool // whether a goroutine writes the queued packets; no other goroutine may then write to the socket
	grown   bool // whether the socket's send buffer has frame.BufferBytes
	closed  bool
	writers sync.WaitGroup
}

// newLink returns a link on a frame socket, and takes ownership of the file.
func newLink(host *Host, id string, file *os.File, dropped *atomic.Uint64) (*link, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	l := &link{host: host, id: id, file: file, raw: raw, dropped: dropped}
	l.setBuffer(smallSend)
	return l, nil
}

func (l *link) setBuffer(bytes int) {
	_ = l.raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, bytes) })
}

// growLocked enlarges the send buffer of the socket, if it is small and the room for links is not
// full. It reports whether it has done so.
func (l *link) growLocked() bool {
	if l.grown || !l.host.links.take(growBytes) {
		return false
	}
	l.grown = true
	l.setBuffer(frame.BufferBytes)
	return true
}

// shrink reduces a send buffer that is not needed, so that other sandboxes can have large buffers.
func (l *link) shrink() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.grown || l.writing || l.closed {
		return
	}
	queued := 0
	err := l.raw.Control(func(fd uintptr) { queued, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	if err != nil || queued > smallBytes {
		return
	}
	l.grown = false
	l.setBuffer(smallSend)
	l.host.links.give(growBytes)
}

// close closes the socket, so that reads and writes fail. It may be called more than once.
func (l *link) close() {
	l.mu.Lock()
	again, held := l.closed, int64(smallBytes)
	l.closed = true
	if l.grown {
		held += growBytes
	}
	l.mu.Unlock()
	if !again {
		l.host.links.add(smallBytes)
		l.host.ends.close(l.id, l.file, func() { l.host.links.give(held) })
	}
	l.writers.Wait()
}

// WritePackets sends or queues packets for the guest.
func (l *link) WritePackets(pkts gvisor.PacketBufferList) (int, tcpip.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, pkt := range pkts.AsSlice() {
		l.writeLocked(pkt)
	}
	return pkts.Len(), nil
}

func (l *link) writeLocked(pkt *gvisor.PacketBuffer) {
	if l.closed {
		return
	}
	if !l.writing && (l.sendLocked(pkt) || l.growLocked() && l.sendLocked(pkt)) {
		return
	}
	if !l.takeLocked(pkt.MemSize()) {
		l.dropped.Add(1)
		return
	}
	l.queue = append(l.queue, pkt.IncRef())
	if !l.writing {
		l.writing = true
		l.writers.Go(l.write)
	}
}

// sendLocked sends a packet without waiting. It returns false if the socket has no room.
func (l *link) sendLocked(pkt *gvisor.PacketBuffer) bool {
	var err error
	// The callback always returns true, so Write does not wait.
	lost := l.raw.Write(func(fd uintptr) bool {
		err = send(int(fd), pkt)
		return true
	})
	return lost != nil || !errors.Is(err, unix.EAGAIN)
}

// write sends the queued packets. It returns when the queue is empty.
func (l *link) write() {
	for {
		pkt := l.next()
		if pkt == nil {
			return
		}
		// An error is ignored, because the reader of the socket receives it too. The error means
		// that the socket is closed or the VM has stopped.
		_ = l.raw.Write(func(fd uintptr) bool { return !errors.Is(send(int(fd), pkt), unix.EAGAIN) })
		pkt.DecRef()
	}
}

func (l *link) next() *gvisor.PacketBuffer {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		for _, pkt := range l.queue {
			pkt.DecRef()
		}
		l.queue = nil
		l.giveLocked(l.queued)
	}
	if len(l.queue) == 0 {
		l.queue, l.writing = nil, false
		return nil
	}
	pkt := l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	l.giveLocked(pkt.MemSize())
	return pkt
}

// takeLocked counts n more bytes in the queue. It reports whether there is room for them.
func (l *link) takeLocked(n int) bool {
	more := above(l.queued+n) - above(l.queued)
	if l.queued+n > queueBytes || more > 0 && !l.host.links.take(more) {
		return false
	}
	l.queued += n
	return true
}

func (l *link) giveLocked(n int) {
	l.host.links.give(above(l.queued) - above(l.queued-n))
	l.queued -= n
}

// above returns how many of the bytes in a queue are above fewBytes.
func above(queued int) int64 { return int64(max(0, queued-fewBytes)) }

// send writes one message.
func send(fd int, pkt *gvisor.PacketBuffer) error {
	var head [linkHeaderBytes]byte
	m := inspect.Prepend(head[:0], pkt.Size(), uint16(header.IPv4ProtocolNumber))
	gso := &pkt.GSOOptions
	if gso.Type == gvisor.GSOTCPv4 && gso.NeedsCsum {
		const needsCsum, gsoTCPv4 = 1, 1 // virtio 1.2 §5.1.6
		m[0] = needsCsum
		binary.LittleEndian.PutUint16(m[6:], header.EthernetMinimumSize+gso.L3HdrLen)
		binary.LittleEndian.PutUint16(m[8:], gso.CsumOffset)
		if pkt.Data().Size() > int(gso.MSS) {
			m[1] = gsoTCPv4
			binary.LittleEndian.PutUint16(m[2:], uint16(header.EthernetMinimumSize+pkt.HeaderSize()))
			binary.LittleEndian.PutUint16(m[4:], gso.MSS)
		}
	}
	return sendBuffers(fd, append([][]byte{m}, pkt.AsSlices()...))
}

// writeMessage sends a whole message, or drops it if there is no room.
func (l *link) writeMessage(m []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.writing {
		l.dropped.Add(1)
		return
	}
	_ = l.raw.Write(func(fd uintptr) bool {
		_ = sendBuffers(int(fd), [][]byte{m})
		return true
	})
}

func sendBuffers(fd int, buffers [][]byte) error {
	for {
		_, err := unix.SendmsgBuffers(fd, buffers, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			return err
		}
	}
}

// The following methods complete gvisor.LinkEndpoint. The link resolves no addresses, because the
// guest is the destination of all packets.

func (l *link) MTU() uint32                             { return frame.MTU }
func (l *link) SetMTU(uint32)                           {}
func (l *link) MaxHeaderLength() uint16                 { return 0 }
func (l *link) LinkAddress() tcpip.LinkAddress          { return "" }
func (l *link) SetLinkAddress(tcpip.LinkAddress)        {}
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }
func (l *link) AddHeader(*gvisor.PacketBuffer)          {}
func (l *link) ParseHeader(*gvisor.PacketBuffer) bool   { return true }
func (l *link) Wait()                                   {}
func (l *link) Close()                                  {}
func (l *link) SetOnCloseAction(func())                 {}
func (l *link) IsAttached() bool                        { return l.dispatcher != nil }
func (l *link) Attach(d gvisor.NetworkDispatcher)       { l.dispatcher = d }
func (l *link) GSOMaxSize() uint32                      { return gsoBytes }
func (l *link) SupportedGSO() gvisor.SupportedGSO       { return gvisor.HostGSOSupported }

func (l *link) Capabilities() gvisor.LinkEndpointCapabilities {
	if l.validated.Load() {
		return gvisor.CapabilityRXChecksumOffload
	}
	return gvisor.CapabilityNone
}
