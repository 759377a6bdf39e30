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
	// fewBytes is the part of queueBytes that a sandbox has even if the room for the queues of all
	// sandboxes is full.
	fewBytes = 64 << 10

	linkHeaderBytes = frame.HeaderBytes + header.EthernetMinimumSize

	// gsoBytes is the maximum payload of a TCP segment for the guest. Segments may be longer than
	// the MTU, because the guest accepts any IPv4 packet.
	gsoBytes = 65535 - header.IPv4MinimumSize - header.TCPHeaderMaximumSize
)

// link is the gVisor link endpoint on a frame socket. Its methods never block. Packets for which
// the socket has no room are queued. A goroutine, which exists only while packets are queued,
// writes them.
type link struct {
	host *Host  // its field queues counts the bytes in this link's queue above fewBytes
	id   string // id of the sandbox
	file *os.File
	raw  syscall.RawConn

	// validated is the value that Capabilities reports about the checksums of received packets. The
	// goroutine that delivers a packet first sets this value. The stack calls Capabilities for each
	// packet, in the same goroutine.
	validated  atomic.Bool
	dropped    *atomic.Uint64
	dispatcher gvisor.NetworkDispatcher

	mu      sync.Mutex
	queue   []*gvisor.PacketBuffer
	queued  int  // bytes of the packets in queue
	writing bool // whether a goroutine writes the queued packets; no other goroutine may then write to the socket
	closed  bool
	writers sync.WaitGroup
}

// newLink returns a link on a frame socket, and takes ownership of the file.
func newLink(host *Host, id string, file *os.File, dropped *atomic.Uint64) (*link, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &link{host: host, id: id, file: file, raw: raw, dropped: dropped}, nil
}

// close closes the socket, so that reads and writes fail. It may be called more than once.
func (l *link) close() {
	l.mu.Lock()
	again := l.closed
	l.closed = true
	l.mu.Unlock()
	if !again {
		l.host.ends.close(l.id, l.file)
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
	if !l.writing {
		var err error
		// The callback always returns true, so Write does not wait.
		lost := l.raw.Write(func(fd uintptr) bool {
			err = send(int(fd), pkt)
			return true
		})
		if lost != nil || !errors.Is(err, unix.EAGAIN) {
			return
		}
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
	if l.queued+n > queueBytes || more > 0 && !l.host.queues.take(more) {
		return false
	}
	l.queued += n
	return true
}

func (l *link) giveLocked(n int) {
	l.host.queues.give(above(l.queued) - above(l.queued-n))
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
