package vsock

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guestmem"
	"github.com/forkd/forkd/internal/virtio"
	"github.com/forkd/forkd/internal/virtio/mmio"
	"github.com/forkd/forkd/internal/virtio/virtiotest"
	"github.com/forkd/forkd/internal/wire"
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

// host is the host side of one device: its listener's path and the streams the guest opened.
type host struct {
	path  string
	dials chan int // descriptors
	dev   *Device
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
	h.dev, err = New(Config{GuestCID: guestCID, Listener: f, Dial: func(port uint32, fd int) error {
		if port != 1025 {
			return fmt.Errorf("no service on port %d", port)
		}
		h.dials <- fd
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// connect begins a connection to a guest port.
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

// guest plays the driver. Its rx loop is pumped by next.
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

// poll returns the next packet from the device if there is one, and gives its buffer back.
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

// send gives the device a packet and waits until it was taken.
func (g *guest) send(h header, data []byte) {
	g.t.Helper()
	g.post(h, data)
	g.tx.Wait()
}

// post gives the device a packet.
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

// reply returns a header in the direction opposite to h.
func reply(h header, op uint16) header {
	return header{srcPort: h.dstPort, dstPort: h.srcPort, op: op, bufAlloc: 256 << 10}
}

// open accepts a host client's connection and returns the REQUEST.
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

func TestHostConnects(t *testing.T) {
	h := newHost(t)
	g := start(t, h, newMem(t))
	c := h.connect(t, 1024)
	io.WriteString(c, "early") // after the line, before the guest has answered
	req, r := g.open(c, 1024)
	if h, data := g.next(); h.op != opRW || string(data) != "early" {
		t.Fatalf("operation %d, %q", h.op, data)
	}
	g.send(reply(req, opRW), []byte("hello host"))
	got := make([]byte, 10)
	if _, err := io.ReadFull(r, got); err != nil || string(got) != "hello host" {
		t.Fatalf("%q, %v", got, err)
	}
	c.CloseWrite()
	if h := g.expect(opShutdown); h.flags != shutdownSend {
		t.Fatalf("half close: flags %d", h.flags)
	}
	g.send(reply(req, opRW), []byte("after half close"))
	g.send(func() header { h := reply(req, opShutdown); h.flags = shutdownSend; return h }(), nil)
	if rest, err := io.ReadAll(r); err != nil || string(rest) != "after half close" {
		t.Fatalf("%q, %v", rest, err)
	}
	if h := g.expect(opShutdown); h.flags != shutdownBoth {
		t.Fatalf("both halves closed: flags %d", h.flags)
	}
	g.send(reply(req, opRST), nil)
	g.send(reply(req, opRW), []byte("to nobody"))
	g.expect(opRST)
}

func TestGuestRefuses(t *testing.T) {
	h := newHost(t)
	g := start(t, h, newMem(t))
	c := h.connect(t, 5)
	g.send(reply(g.expect(opRequest), opRST), nil)
	if rest, err := io.ReadAll(c); len(rest) != 0 {
		t.Fatalf("%q, %v", rest, err)
	}
}

func TestBadLinesAreClosed(t *testing.T) {
	h := newHost(t)
	start(t, h, newMem(t))
	for _, line := range []string{"\n", "CONNECT x\n", "CONNECT 4294967296\n", "GET / HTTP/1.1\r\n",
		"CONNECT 000000000000000000000000000000000000000001\n"} {
		c, err := net.Dial("unix", h.path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range line { // in pieces
			if _, err := io.WriteString(c, line[i:i+1]); err != nil {
				break
			}
		}
		if rest, _ := io.ReadAll(c); len(rest) != 0 {
			t.Errorf("%q got %q", line, rest)
		}
		c.Close()
	}
}

func TestGuestConnects(t *testing.T) {
	h := newHost(t)
	g := start(t, h, newMem(t))
	g.send(header{srcPort: 7, dstPort: 9, op: opRequest, bufAlloc: 4096}, nil)
	g.expect(opRST)
	req := header{srcPort: 7, dstPort: 1025, op: opRequest, bufAlloc: 4096}
	g.send(req, nil)
	g.expect(opResponse)
	f := os.NewFile(uintptr(<-h.dials), "stream")
	defer f.Close()
	rw := req
	rw.op = opRW
	g.send(rw, []byte("ready\n"))
	if line, err := bufio.NewReader(f).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	// The guest's buffer has 4096 bytes: no more arrives until it says that it has taken some.
	go f.Write(bytes.Repeat([]byte{1}, 5000))
	var n int
	for n < 4096 {
		h, data := g.next()
		if h.op != opRW {
			t.Fatalf("operation %d after %d bytes", h.op, n)
		}
		n += len(data)
	}
	if n != 4096 {
		t.Fatalf("%d bytes on 4096 bytes of credit", n)
	}
	g.expect(opCreditRequest)
	update := req
	update.op, update.fwdCount = opCreditUpdate, 4096
	g.send(update, nil)
	for n < 5000 {
		_, data := g.next()
		n += len(data)
	}
	if n != 5000 {
		t.Fatalf("%d bytes, want 5000", n)
	}
	shut := req
	shut.op, shut.flags = opShutdown, shutdownBoth
	g.send(shut, nil)
	g.expect(opRST)
	if rest, err := io.ReadAll(f); len(rest) != 0 || err != nil {
		t.Fatalf("%q, %v", rest, err)
	}
}

// TestSlowReaderBlocksNobody fills one stream until its credit is used up and talks over another.
func TestSlowReaderBlocksNobody(t *testing.T) {
	h := newHost(t)
	g := start(t, h, newMem(t))
	slow, fast := h.connect(t, 1), net.Conn(nil)
	slowReq, slowR := g.open(slow, 1)
	chunk := bytes.Repeat([]byte("slow"), 2048)
	var sent, fwd uint32
	for sent-fwd+uint32(len(chunk)) <= bufAlloc {
		g.send(reply(slowReq, opRW), chunk)
		sent += uint32(len(chunk))
		for {
			h, _, ok := g.poll()
			if !ok {
				break
			}
			if h.op != opCreditUpdate {
				t.Fatalf("operation %d", h.op)
			}
			fwd = h.fwdCount
		}
	}
	c := h.connect(t, 2)
	fast = c
	req, r := g.open(c, 2)
	g.send(reply(req, opRW), []byte("quick\n"))
	if line, err := r.ReadString('\n'); err != nil || line != "quick\n" {
		t.Fatalf("%q, %v", line, err)
	}
	fast.Close()
	got := make([]byte, sent)
	if _, err := io.ReadFull(slowR, got); err != nil || !bytes.Equal(got, bytes.Repeat([]byte("slow"), int(sent)/4)) {
		t.Fatalf("slow stream differs: %v", err)
	}
	// Beyond its credit the guest is cut off.
	for range bufAlloc/len(chunk) + 200 {
		g.send(reply(slowReq, opRW), chunk)
	}
	virtiotest.Eventually(t, "the greedy stream is reset", func() bool {
		h, _, ok := g.poll()
		return ok && h.op == opRST && h.dstPort == 1
	})
}

// TestManyStreams echoes random data over several streams at once and checks every byte.
func TestManyStreams(t *testing.T) {
	const streams, size = 8, 200_000
	h := newHost(t)
	g := start(t, h, newMem(t))
	var wg sync.WaitGroup
	for i := range streams {
		c := h.connect(t, uint32(100+i))
		wg.Add(2)
		want := make([]byte, size)
		rng := rand.New(rand.NewPCG(uint64(i), 0))
		for j := range want {
			want[j] = byte(rng.Uint32())
		}
		go func() {
			defer wg.Done()
			c.Write(want)
			c.CloseWrite()
		}()
		go func() {
			defer wg.Done()
			r := bufio.NewReader(c)
			r.ReadString('\n')
			got, err := io.ReadAll(r)
			if !bytes.Equal(got, want) {
				t.Errorf("stream %d: %d bytes, differ (%v)", i, len(got), err)
			}
		}()
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	g.echo(done)
}

// echo is a guest that accepts everything and sends back what it gets, within its credit.
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

// TestRestoreResetsAndHolds forks a device with a connection: the child sends a transport reset and keeps clients
// waiting until the driver has given the event buffer back.
func TestRestoreResetsAndHolds(t *testing.T) {
	mem := newMem(t)
	parent := newHost(t)
	g := start(t, parent, mem)
	c := parent.connect(t, 1)
	req, _ := g.open(c, 1)
	g.tr.Quiesce()
	var w wire.Writer
	g.tr.Save(&w)

	child := newHost(t)
	k := attach(t, child, mem)
	k.rx, k.tx, k.event, k.rxGPA = g.rx, g.tx, g.event, g.rxGPA
	k.rx, k.tx, k.event = rekick(g.rx, k), rekick(g.tx, k), rekick(g.event, k)
	waiting := child.connect(t, 77)
	k.tr.Quiesce()
	if err := k.tr.Restore(wire.NewReader(w.Bytes())); err != nil {
		t.Fatal(err)
	}
	k.post(header{srcPort: 50, dstPort: 1025, op: opRequest, bufAlloc: 4096}, nil)
	if err := k.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
	head, n := k.event.Wait()
	if n != 4 {
		t.Fatalf("event of %d bytes", n)
	}
	if k.event.AvailEvent() != k.event.AvailIdx() {
		t.Fatalf("the device waits for available index %d, not %d", k.event.AvailEvent(), k.event.AvailIdx())
	}
	// Serving the queues more often changes nothing.
	for range 3 {
		k.tr.Quiesce()
		if err := k.tr.Unquiesce(); err != nil {
			t.Fatal(err)
		}
	}
	k.tr.Quiesce()
	if _, _, ok := k.tx.Poll(); ok || child.dev.listening {
		t.Fatal("the device did not wait for the driver")
	}
	var held wire.Writer
	k.tr.Save(&held)
	if err := k.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
	k.event.Add(virtiotest.Buf{GPA: evBase + guestmem.GPA(head)*16, Len: 4, Write: true})
	k.event.Kick()
	k.tx.Wait()
	ops := map[uint16]bool{}
	for len(ops) < 2 {
		h, _ := k.next()
		ops[h.op] = true
		if h.op == opRequest {
			req = h
		}
	}
	if !ops[opResponse] || !ops[opRequest] {
		t.Fatalf("operations %v", ops)
	}
	_ = unix.Close(<-child.dials)
	k.send(reply(req, opResponse), nil)
	if line, err := bufio.NewReader(waiting).ReadString('\n'); err != nil || line[:3] != "OK " {
		t.Fatalf("%q, %v", line, err)
	}
	if err := g.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
}

// rekick returns r with its kicks going to k's device.
func rekick(r *virtiotest.Ring, k *guest) *virtiotest.Ring {
	c := *r
	c.SetKick(func() { virtiotest.Store(k.tr, mmio.RegQueueNotify, 0) })
	return &c
}

func TestResumeInPlaceKeepsConnections(t *testing.T) {
	h := newHost(t)
	g := start(t, h, newMem(t))
	c := h.connect(t, 1)
	req, r := g.open(c, 1)
	g.tr.Quiesce()
	io.WriteString(c, "while paused")
	if err := g.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
	if h, data := g.next(); h.op != opRW || string(data) != "while paused" {
		t.Fatalf("operation %d, %q", h.op, data)
	}
	g.send(reply(req, opRW), []byte("on\n"))
	if line, err := r.ReadString('\n'); err != nil || line != "on\n" {
		t.Fatalf("%q, %v", line, err)
	}
}

// TestPlacesAreBounded opens more connections than there are places; the guest closes none of them.
func TestPlacesAreBounded(t *testing.T) {
	h := newHost(t)
	g := start(t, h, newMem(t))
	for i := range maxConns + 20 {
		c := h.connect(t, 9)
		g.open(c, 9)
		c.Close() // the guest is told, and lingers
		if h := g.expect(opShutdown); h.flags != shutdownBoth {
			t.Fatalf("connection %d: flags %d", i, h.flags)
		}
	}
	if !g.tr.Enter() {
		t.Fatal("not running")
	}
	defer g.tr.Leave()
	if n := len(h.dev.conns); n > maxConns {
		t.Fatalf("%d connections", n)
	}
}
