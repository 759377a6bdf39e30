package vsock

import (
	"bufio"
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/mmio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
)

const (
	guestCID = 3
	rxSize   = 4096
	rxCount  = 16
	rxBase   = 0x40000
	txBase   = 0x80000
	evBase   = 0xa0000
	ringBase = 0x10000
)

// host is the host side of a device: the path of its listener, and the streams that the guest has
// opened.
type host struct {
	path  string
	dials chan int // receives the descriptors of the guest's streams
	dev   *Device
}

// streamPair returns the two ends of a stream. The second end is in non-blocking mode.
func streamPair(t testing.TB) (ours, theirs int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fds[1], true)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fds[0], fds[1]
}

func newHost(t testing.TB) *host {
	t.Helper()
	h := &host{path: filepath.Join(t.TempDir(), "v"), dials: make(chan int, 4)}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	h.dev, err = New(Config{GuestCID: guestCID, Listener: f, Dial: func(port uint32) (int, error) {
		if port != 1025 {
			return -1, fmt.Errorf("no service on port %d", port)
		}
		ours, theirs := streamPair(t)
		h.dials <- ours
		return theirs, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// connect starts a connection to a guest port.
func (h *host) connect(t testing.TB, port uint32) *net.UnixConn {
	t.Helper()
	c, err := net.Dial("unix", h.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "CONNECT %d\n", port)
	return c.(*net.UnixConn)
}

// guest is the driver of a device. The packets that the driver has received are returned by the
// methods poll and next.
type guest struct {
	t             testing.TB
	mem           *guestmem.Memory
	tr            *mmio.Transport
	irq           *virtiotest.IRQ
	rx, tx, event *virtiotest.Ring
	rxGPA         map[uint16]guestmem.GPA
	txSlot        int
}

func start(t testing.TB, h *host, mem *guestmem.Memory) *guest {
	t.Helper()
	g := attach(t, h, mem)
	rings := virtiotest.Start(t, mem, g.tr, virtio.FVersion1|virtio.FEventIdx, ringBase, 32, 32, 8)
	g.rx, g.tx, g.event = rings[0], rings[1], rings[2]
	for i := range rxCount {
		g.addRX(rxBase + guestmem.GPA(i)*rxSize)
	}
	for i := range 4 {
		g.event.Add(virtiotest.Buf{GPA: evBase + guestmem.GPA(i)*16, Len: 4, Write: true})
	}
	g.rx.Kick()
	return g
}

func attach(t testing.TB, h *host, mem *guestmem.Memory) *guest {
	t.Helper()
	g := &guest{t: t, mem: mem, irq: &virtiotest.IRQ{}, rxGPA: map[uint16]guestmem.GPA{}}
	var err error
	if g.tr, err = mmio.New(mem, h.dev, g.irq); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.tr.Close(); err != nil {
			t.Error(err)
		}
		if err := h.dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func newMem(t testing.TB) *guestmem.Memory {
	t.Helper()
	mem, err := guestmem.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Close() })
	return mem
}

func (g *guest) addRX(gpa guestmem.GPA) {
	g.rxGPA[g.rx.Add(virtiotest.Buf{GPA: gpa, Len: rxSize, Write: true})] = gpa
}

// poll returns the next packet from the device, if there is one. It gives the packet's buffer back
// to the device.
func (g *guest) poll() (h header, data []byte, ok bool) {
	g.t.Helper()
	head, n, ok := g.rx.Poll()
	if !ok {
		return h, nil, false
	}
	gpa := g.rxGPA[head]
	raw := make([]byte, n)
	if err := g.mem.ReadAt(raw, gpa); err != nil {
		g.t.Fatal(err)
	}
	g.addRX(gpa)
	g.rx.Kick()
	h = decodeHeader((*[headerSize]byte)(raw))
	if int(h.length) != len(raw)-headerSize || h.srcCID != hostCID || h.dstCID != guestCID || h.kind != typeStream {
		g.t.Fatalf("bad header %+v of %d bytes", h, n)
	}
	return h, raw[headerSize:], true
}

func (g *guest) next() (h header, data []byte) {
	g.t.Helper()
	virtiotest.Eventually(g.t, "a packet arrives", func() (ok bool) {
		if err := g.tr.Err(); err != nil {
			g.t.Fatal(err)
		}
		h, data, ok = g.poll()
		return ok
	})
	return h, data
}

func (g *guest) expect(op uint16) header {
	g.t.Helper()
	h, data := g.next()
	if h.op != op {
		g.t.Fatalf("got operation %d with %d bytes, want %d", h.op, len(data), op)
	}
	return h
}

// send sends a packet to the device and waits until the device has processed the packet.
func (g *guest) send(h header, data []byte) {
	g.t.Helper()
	g.post(h, data)
	g.tx.Wait()
}

// post sends a packet to the device and does not wait.
func (g *guest) post(h header, data []byte) {
	g.t.Helper()
	h.srcCID, h.dstCID, h.kind, h.length = guestCID, hostCID, typeStream, uint32(len(data))
	gpa := txBase + guestmem.GPA(g.txSlot%4)*0x4000
	g.txSlot++
	raw := h.encode()
	if err := g.mem.WriteAt(append(raw[:], data...), gpa); err != nil {
		g.t.Fatal(err)
	}
	g.tx.Add(virtiotest.Buf{GPA: gpa, Len: headerSize}, virtiotest.Buf{GPA: gpa + headerSize, Len: uint32(len(data))})
	g.tx.Kick()
}

// reply returns a header for a packet in the opposite direction of h.
func reply(h header, op uint16) header {
	return header{srcPort: h.dstPort, dstPort: h.srcPort, op: op, bufAlloc: 256 << 10}
}

// open accepts the connection of a host client, and returns the header of the REQUEST and a reader
// of the connection.
func (g *guest) open(c *net.UnixConn, port uint32) (req header, r *bufio.Reader) {
	g.t.Helper()
	req = g.expect(opRequest)
	if req.dstPort != port || req.bufAlloc != bufAlloc {
		g.t.Fatalf("request %+v", req)
	}
	g.send(reply(req, opResponse), nil)
	r = bufio.NewReader(c)
	line, err := r.ReadString('\n')
	if want := fmt.Sprintf("OK %d\n", req.srcPort); err != nil || line != want {
		g.t.Fatalf("answer %q, %v, want %q", line, err, want)
	}
	return req, r
}

// echo makes the guest accept every connection and send back the data that it receives, as far as
// its credit permits.
func (g *guest) echo(done chan struct{}) {
	type stream struct {
		h              header
		queue          []byte
		received, sent uint32
		hostFwd        uint32
		eof, shut      bool
	}
	streams := map[uint32]*stream{}
	for {
		select {
		case <-done:
			return
		default:
		}
		if err := g.tr.Err(); err != nil {
			g.t.Fatal(err)
		}
		if h, data, ok := g.poll(); ok {
			s := streams[h.srcPort]
			if h.op == opRequest {
				s = &stream{h: reply(h, opResponse)}
				streams[h.srcPort] = s
				g.send(s.h, nil)
			}
			s.received += uint32(len(data))
			s.queue, s.hostFwd = append(s.queue, data...), h.fwdCount
			s.eof = s.eof || h.op == opShutdown
		}
		for _, s := range streams {
			h := s.h
			h.fwdCount = s.received
			if n := min(len(s.queue), int(bufAlloc-(s.sent-s.hostFwd)), 0x3000); n > 0 {
				h.op = opRW
				g.send(h, s.queue[:n])
				s.queue, s.sent = s.queue[n:], s.sent+uint32(n)
			} else if s.eof && len(s.queue) == 0 && !s.shut {
				s.shut = true
				h.op, h.flags = opShutdown, shutdownBoth
				g.send(h, nil)
			}
		}
	}
}
