package stack

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/net/nettest"
	"github.com/forkd/forkd/internal/net/policy"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// kernelMemory matches the memory of a socket in the output of ss(8): the received bytes and their
// limit, the bytes that are being sent and their limit, the reserved bytes, and the queued bytes.
var kernelMemory = regexp.MustCompile(`skmem:\(r(\d+),rb(\d+),t(\d+),tb(\d+),f(\d+),w(\d+),`)

// kernelBytes returns how many bytes the kernel holds for the connections of this process to an
// address: the sum for all connections, and the maximum for one connection.
func kernelBytes(t *testing.T, to string) (sum, largest int64) {
	t.Helper()
	out, err := exec.Command("ss", "-tmnH", "dst", to).Output()
	if err != nil {
		t.Skipf("ss, a program of iproute2: %v", err)
	}
	for _, m := range kernelMemory.FindAllSubmatch(out, -1) {
		var n int64
		for _, i := range []int{1, 5, 6} {
			bytes, err := strconv.ParseInt(string(m[i]), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			n += bytes
		}
		sum, largest = sum+n, max(largest, n)
	}
	return sum, largest
}

// TestAttackKernelBuffers opens connections on which both sides first read fast, and then stop
// reading. The fast reading would make the kernel enlarge its buffers. The kernel's memory for the
// connections stays within the bytes that are counted.
func TestAttackKernelBuffers(t *testing.T) {
	const each, fast = 40, 4 << 20
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":80"), func(c net.Conn) {
		go func() { _, _ = io.CopyN(io.Discard, c, fast) }()
		_, _ = io.Copy(c, zeros{})
	})
	r := newRig(t, w, "public")
	r.grown.most, r.roomy.most = 2*roomyBuffers.bytes()+4*normalBuffers.bytes(), 2*roomyBuffers.bytes()
	for range each {
		c := r.mustDial(t, web+":80")
		go func() { _, _ = io.Copy(c, zeros{}) }()
		go func() { _, _ = io.CopyN(io.Discard, c, fast) }()
	}
	var moved uint64
	waitFor(t, "both directions stand still", func() bool {
		earlier := moved
		time.Sleep(500 * time.Millisecond)
		moved = r.counters.moving(r.Stack)
		return moved == earlier && moved > each*fast
	})
	sum, largest := kernelBytes(t, web+":80")
	t.Logf("%d connections hold %d KiB in the kernel, the largest %d KiB", each, sum>>10, largest>>10)
	if counted := each*flowBytes + r.grown.used.Load(); sum == 0 || sum > counted {
		t.Errorf("%d connections hold %d KiB in the kernel, but %d KiB are counted", each, sum>>10, counted>>10)
	}
	if largest > roomyBuffers.bytes() {
		t.Errorf("one connection holds %d KiB in the kernel", largest>>10)
	}
	if used, all := r.grown.used.Load(), r.host.grown.used.Load(); used != r.grown.most || all != used {
		t.Errorf("%d bytes are counted, and %d of all sandboxes, want %d", used, all, r.grown.most)
	}
}

// Linux may enlarge the buffer for data from the server only for the first flows of a sandbox, and
// only if the sandbox's share has room for the largest size.
func TestFarBuffersAreCounted(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ memory, receive, far int64 }{
		{8 << 30, 6 << 20, farFlows},
		{1 << 30, 6 << 20, 2}, // half of a quarter of an eighth of 1 GiB is 16 MiB
		{LeastMemory, 6 << 20, 0},
		{8 << 30, 0, 0},
	} {
		h := NewHost(10000)
		h.SetMemory(c.memory)
		h.SetReceive(c.receive)
		r := addRig(t, w, h, "public", netproto.Limits{})
		var far, sum int64
		var all []*flow
		for range farFlows + 2 {
			f, refusal := r.begin(policy.TCP, netip.MustParseAddrPort(web+":80"))
			if f == nil {
				t.Fatal(refusal)
			}
			all = append(all, f)
			b := f.buffers()
			if b.grows > 0 {
				far++
			}
			if b != smallBuffers {
				sum += b.bytes()
			}
			if b.grows > 0 && b.bytes() < c.receive {
				t.Errorf("%d bytes of memory: a flow whose buffer may grow to %d bytes counts %d", c.memory, c.receive, b.bytes())
			}
		}
		if used := h.grown.used.Load(); far != c.far || used != sum {
			t.Errorf("%d bytes of memory: %d flows whose buffers grow, want %d; %d bytes are counted, want %d", c.memory, far,
				c.far, used, sum)
		}
		for _, f := range all {
			f.stack.end(f)
		}
		if used := h.grown.used.Load(); used != 0 {
			t.Errorf("%d bytes are counted of none", used)
		}
	}
}

// TestAttackFarBuffers fills buffers that Linux enlarges. No buffer may hold more bytes than are
// counted for it.
func TestAttackFarBuffers(t *testing.T) {
	const fast = 64 << 20
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":80"), func(c net.Conn) { _, _ = io.Copy(c, zeros{}) })
	h := NewHost(10000)
	h.SetMemory(64 << 30)
	h.SetReceive(LargestReceive())
	if h.receive < int64(roomyBuffers.receive) {
		t.Fatalf("the largest receive buffer is %d bytes", h.receive)
	}
	r := addRig(t, w, h, "public", netproto.Limits{})
	for range farFlows {
		c := r.mustDial(t, web+":80")
		go func() { _, _ = io.CopyN(io.Discard, c, fast) }()
	}
	var moved uint64
	waitFor(t, "the flows stand still", func() bool {
		earlier := moved
		time.Sleep(500 * time.Millisecond)
		moved = r.counters.moving(r.Stack)
		return moved == earlier && moved >= farFlows*fast
	})
	sum, largest := kernelBytes(t, web+":80")
	t.Logf("%d connections hold %d KiB in the kernel, the largest %d KiB", farFlows, sum>>10, largest>>10)
	if counted := r.grown.used.Load(); counted != farFlows*h.farBuffers().bytes() || sum == 0 || sum > counted {
		t.Errorf("%d connections hold %d KiB in the kernel, but %d KiB are counted", farFlows, sum>>10, counted>>10)
	}
	if largest > h.farBuffers().bytes() {
		t.Errorf("one connection holds %d KiB in the kernel", largest>>10)
	}
}

// TestAttackClosedUnread closes connections on both sides while bytes for one side are unread. The
// flow and its buffers still count against the limits until that side has read the bytes, or the
// flow is reset.
func TestAttackClosedUnread(t *testing.T) {
	type end interface {
		io.ReadWriter
		CloseWrite() error
	}
	w := newWorld(t)
	servers := make(chan *net.TCPConn, 1)
	nettest.Serve(w.Listen(t, web+":80"), func(c net.Conn) {
		_ = c.(*net.TCPConn).SetReadBuffer(minBuffer)
		servers <- c.(*net.TCPConn)
	})
	// The receiver's buffers are too small for this many bytes, but the buffers of receiver and
	// stack together are large enough.
	const up, down = 320 << 10, 576 << 10
	for _, test := range []struct {
		name   string
		size   int
		resets bool
	}{{"up", up, false}, {"up, reset", up, true}, {"down", down, false}, {"down, reset", down, true}} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, w, "public")
			guest := r.mustDial(t, web+":80")
			var sender, receiver end = guest, <-servers
			if test.size == down {
				sender, receiver = receiver, guest
			}
			written := make(chan error, 1)
			go func() {
				_, err := sender.Write(make([]byte, test.size))
				written <- errors.Join(err, sender.CloseWrite(), receiver.CloseWrite())
			}()
			if err := <-written; err != nil {
				t.Fatal(err)
			}
			waitFor(t, "all bytes are forwarded", func() bool { return r.counters.moving(r.Stack) == uint64(test.size) })
			time.Sleep(300 * time.Millisecond)
			if open, bytes := r.counters.Open.Load(), r.grown.used.Load(); open != 1 || bytes == 0 {
				t.Errorf("%d flows with %d bytes are counted, want one with some", open, bytes)
			}
			if test.resets {
				r.Sweep(time.Now().Add(idleHalf + time.Second))
			} else if p, err := io.ReadAll(receiver); len(p) != test.size || err != nil {
				t.Errorf("the receiver got %d bytes, %v", len(p), err)
			}
			waitFor(t, "the flow ends", func() bool { return r.counters.Open.Load() == 0 })
			if n, all := r.grown.used.Load(), r.host.grown.used.Load(); n != 0 || all != 0 {
				t.Errorf("%d bytes are counted, and %d of all sandboxes, although no flow is left", n, all)
			}
		})
	}
}

// Flows have smaller buffers if there are many flows, if the sandbox has used its share, or if the
// room of all sandboxes is full. The buffers of ended flows no longer count.
func TestBuffersAreCounted(t *testing.T) {
	w := newWorld(t)
	h := NewHost(10000)
	share := h.grown.most / growPart
	var all []*flow
	var rigs []*rig
	for range growPart + 1 {
		r := addRig(t, w, h, "public", netproto.Limits{})
		rigs = append(rigs, r)
		var sum int64
		number := map[buffers]int64{}
		for range normalFlows + 10 {
			f, refusal := r.begin(policy.TCP, netip.MustParseAddrPort(web+":80"))
			if f == nil {
				t.Fatal(refusal)
			}
			all = append(all, f)
			b := f.buffers()
			if b != f.buffers() {
				t.Fatal("a flow's buffers change")
			}
			if number[b]++; b != smallBuffers {
				sum += b.bytes()
			}
		}
		if sum != r.grown.used.Load() || sum > share {
			t.Errorf("%d bytes of %d are counted, want up to %d", r.grown.used.Load(), sum, share)
		}
		if n := number[roomyBuffers]; n > share/2/roomyBuffers.bytes() || n == 0 && len(rigs) < growPart {
			t.Errorf("%d flows have roomy buffers, want half of the share", n)
		}
		if number[smallBuffers] == 0 {
			t.Error("no flow has small buffers")
		}
	}
	if used := h.grown.used.Load(); used > h.grown.most {
		t.Errorf("%d bytes are counted, want up to %d", used, h.grown.most)
	}
	for _, f := range all {
		f.stack.end(f)
	}
	if used := h.grown.used.Load(); used != 0 {
		t.Errorf("%d bytes are counted of none", used)
	}
}
