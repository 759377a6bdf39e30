package vsock

import (
	"bufio"
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
)

func TestHostConnects(t *testing.T) {
	h := newHost(t)
	g := start(t, h, newMem(t))
	c := h.connect(t, 1024)
	io.WriteString(c, "early") // sent after the line, before the guest has answered
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

// If a guest accepts no packets, the device does not remember all closed connections.
func TestNobodyAnswers(t *testing.T) {
	h := newHost(t)
	mem := newMem(t)
	g := attach(t, h, mem)
	virtiotest.Start(t, mem, g.tr, virtio.FVersion1, ringBase, 32, 32, 8)[queueTX].Kick() // without receive buffers
	look := func(f func()) {
		t.Helper()
		if err := g.tr.Exclusive(f); err != nil {
			t.Fatal(err)
		}
	}
	h.connect(t, 1024) // so this connection is the first in the list of control packets
	for range 2 * maxConns {
		c, err := net.Dial("unix", h.path)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "CONNECT 1024\n")
		virtiotest.Eventually(t, "the device has the connection", func() (has bool) {
			look(func() { has = len(h.dev.conns) == 2 })
			return has
		})
		c.Close()
		virtiotest.Eventually(t, "the device has given it up", func() (has bool) {
			look(func() { has = len(h.dev.conns) == 1 })
			return has
		})
	}
	look(func() {
		if n := len(h.dev.owing); n > maxConns {
			t.Errorf("%d connections are remembered, at most %d are open", n, maxConns)
		}
	})
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
		for i := range line { // byte by byte
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
	// The guest's buffer has 4096 bytes. Further data arrives only after the guest has reported
	// that it has taken some bytes.
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

// TestSlowReaderBlocksNobody fills one stream until the guest may send no more on it. Another
// stream still works.
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
	// If the guest sends more than it may, the device ends the connection.
	for range bufAlloc/len(chunk) + 200 {
		g.send(reply(slowReq, opRW), chunk)
	}
	virtiotest.Eventually(t, "the greedy stream is reset", func() bool {
		h, _, ok := g.poll()
		return ok && h.op == opRST && h.dstPort == 1
	})
}

// TestManyStreams sends random data over several concurrent streams, receives the data back, and
// checks every byte.
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

// TestPlacesAreBounded opens more connections than permitted, while the guest closes none.
func TestPlacesAreBounded(t *testing.T) {
	h := newHost(t)
	g := start(t, h, newMem(t))
	for i := range maxConns + 20 {
		c := h.connect(t, 9)
		g.open(c, 9)
		c.Close() // the guest learns of the close, but keeps its end open
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
