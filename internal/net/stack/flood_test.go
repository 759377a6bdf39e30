package stack

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/forkd/forkd/internal/net/guesttest"
	"github.com/forkd/forkd/internal/net/nettest"
	"github.com/forkd/forkd/internal/net/policy"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// heap returns the bytes in use after a garbage collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // twice, because pools free their content at the second collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestAttackSYNFlood opens more and more connections to an address that does not answer. The number
// of waiting connections is bounded, and another sandbox can still connect.
func TestAttackSYNFlood(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":80"), echo)
	h := NewHost(100000)
	flooder, other := addRig(t, w, h, "public", netproto.Limits{}), addRig(t, w, h, "public", netproto.Limits{})
	before := runtime.NumGoroutine()
	for i := range 20000 {
		// No host answers ARP requests for this address, so the connection is never established.
		flooder.guest.Send(guesttest.Frame(guesttest.SYN(frame.Guest, "93.184.217.1", uint16(i), 80)))
		if i%5000 == 4999 {
			if got, err := other.says(t, web+":80", "hello"); got != "hello" || err != nil {
				t.Errorf("after %d SYNs: %q, %v", i+1, got, err)
			}
		}
	}
	// Each waiting connection has a goroutine and, during a dial, a few goroutines of the standard
	// library.
	if n := runtime.NumGoroutine() - before; n > 4*maxOpening+100 {
		t.Errorf("%d goroutines", n)
	}
	if n := flooder.counters.Open.Load(); n > maxOpening {
		t.Errorf("%d connections are being opened", n)
	}
	flooder.mustCount(t, openRate, 1)
}

// TestAttackHalfOpen opens connections to a server that only a rule for a name allows. So the guest
// must send the name first, but it sends nothing. The stack ends such connections after some time,
// and bounds their number.
func TestAttackHalfOpen(t *testing.T) {
	w := newWorld(t)
	h := NewHost(10000)
	const most = 50
	r := addRig(t, w, h, "allow good.example", netproto.Limits{Connections: most})
	serveDNS(t, w, h, "good.example="+web)
	r.lookup(t, "good.example", false)
	for range most {
		c := r.mustDial(t, web+":443")
		_ = c.SetReadDeadline(time.Now().Add(2 * peekTime))
	}
	if _, err := r.dial(t, web+":443"); err == nil {
		t.Errorf("there are more than %d connections", most)
	}
	r.mustCount(t, tooMany, 1)
	r.mustCount(t, "no-name", most)
	waitFor(t, "they are gone", func() bool { return r.counters.Open.Load() == 0 })
}

// TestAttackSlowReader makes connections of two kinds. Over one kind, the server sends endlessly
// and the guest reads nothing. Over the other, the guest sends endlessly and the server reads
// nothing. The bytes that wait are bounded, and other connections of the sandbox still work.
func TestAttackSlowReader(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":80"), func(c net.Conn) { // sends endlessly
		for chunk := make([]byte, 64<<10); ; {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	})
	nettest.Serve(w.Listen(t, web+":81"), func(net.Conn) {}) // reads nothing
	nettest.Serve(w.Listen(t, web+":82"), echo)
	r := newRig(t, w, "public")
	before := heap()
	const each = 20
	for range each {
		r.mustDial(t, web+":80")
		c := r.mustDial(t, web+":81")
		go func() { _, _ = io.Copy(c, zeros{}) }()
	}
	var held uint64
	waitFor(t, "both directions stand still", func() bool {
		earlier := held
		time.Sleep(200 * time.Millisecond)
		held = r.counters.moving(r.Stack)
		return held == earlier
	})
	// The guest is part of this process and has buffers too.
	if n := int64(heap()) - int64(before); n > 2*each*8*maxBuffer {
		t.Errorf("%d connections hold %d KiB", 2*each, n>>10)
	}
	if got, err := r.says(t, web+":82", "hello"); got != "hello" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// moving returns how many bytes the open flows have carried.
func (c *Counters) moving(s *Stack) (n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.flows {
		n += f.up.Load() + f.down.Load()
	}
	return n
}

// TestAttackFragments sends fragments that overlap or never become a whole packet, fragments of
// protocols that do not need them, and packets with wrong checksums. The stack stores little of
// these packets and continues to work.
func TestAttackFragments(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":80"), echo)
	heard := w.ListenUDP(t, web+":53123")
	r := newRig(t, w, "public")
	before := heap()
	random := rand.New(rand.NewPCG(1, 2))
	payload := make([]byte, 1400)
	for i := range 20000 {
		p := header.IPv4(guesttest.IPv4(frame.Guest, web, uint8(header.UDPProtocolNumber), payload))
		p.SetID(uint16(i / 2))
		p.SetFlagsFragmentOffset(header.IPv4FlagMoreFragments, uint16(random.IntN(4000))*8)
		p.SetChecksum(0)
		p.SetChecksum(^p.CalculateChecksum())
		r.guest.Send(guesttest.Frame(p))
	}
	if n := int64(heap()) - int64(before); n > 4<<20 {
		t.Errorf("fragments hold %d KiB", n>>10)
	}
	syn := header.IPv4(guesttest.SYN(frame.Guest, web, 1024, 80))
	syn.SetFlagsFragmentOffset(header.IPv4FlagMoreFragments, 0)
	syn.SetChecksum(0)
	syn.SetChecksum(^syn.CalculateChecksum())
	r.guest.Send(guesttest.Frame(syn))
	r.mustCount(t, "fragment", 1)

	bad := header.IPv4(guesttest.SYN(frame.Guest, web, 1025, 80))
	bad.SetChecksum(bad.Checksum() + 1)
	r.guest.Send(guesttest.Frame(bad))
	r.mustCount(t, "bad-checksum", 1)
	badTCP := guesttest.SYN(frame.Guest, web, 1026, 80)
	badTCP[len(badTCP)-3]++ // makes the checksum wrong
	r.guest.Send(guesttest.Frame(badTCP))
	r.guest.Send(guesttest.Frame(badUDP(web, 53123)))
	if got, err := r.says(t, web+":80", "hello"); got != "hello" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	waitFor(t, "one connection", func() bool { return r.counters.Passed.Load() == 1 })
	_ = heard.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, _, err := heard.ReadFrom(payload); err == nil {
		t.Errorf("%d bytes with a bad checksum got through", n)
	}
}

// badUDP is a packet with a wrong checksum.
func badUDP(to string, port uint16) []byte {
	p := make([]byte, 12)
	binary.BigEndian.PutUint16(p, 1024)
	binary.BigEndian.PutUint16(p[2:], port)
	binary.BigEndian.PutUint16(p[4:], 12)
	binary.BigEndian.PutUint16(p[6:], 0x1234)
	return guesttest.IPv4(frame.Guest, to, uint8(header.UDPProtocolNumber), p)
}

// TestAttackManyUDPFlows opens too many UDP flows. Each further flow must replace the least
// recently used flow.
func TestAttackManyUDPFlows(t *testing.T) {
	w := newWorld(t)
	w.ListenUDP(t, web+":123")
	r := newRig(t, w, "public")
	for i := range 3 * maxUDP {
		r.guest.Send(guesttest.Frame(guesttest.UDP(frame.Guest, web, uint16(1024+i), 123, nil)))
	}
	waitFor(t, "there are not more than may be", func() bool {
		return r.counters.Passed.Load() >= 2*maxUDP &&
			r.counters.Open.Load() <= maxUDP
	})
}

// If a guest exceeds its packet or byte rate, it is throttled, but loses no data.
func TestLimitsSlowDown(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":80"), echo)
	r := addRig(t, w, NewHost(100), "public", netproto.Limits{BytesPerSecond: 1 << 20, PacketsPerSecond: 2000})
	const size = 512 << 10
	c := r.mustDial(t, web+":80")
	go func() {
		_, _ = c.Write(pattern(size))
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || string(got) != string(pattern(size)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	for _, limiter := range []*rate.Limiter{r.up, r.down} {
		left := limiter.TokensAt(time.Time{}) // tokens left after the latest send; there may be more by now
		if limiter.Limit() != 1<<20 || left >= minBurst {
			t.Errorf("a limit of %v has %v bytes left", limiter.Limit(), left)
		}
	}
	if r.packets.Limit() != 2000 {
		t.Errorf("%v packets in a second", r.packets.Limit())
	}
}

// FuzzFrames checks that the stack works after a guest has written arbitrary messages to its frame
// socket.
func FuzzFrames(f *testing.F) {
	f.Add(guesttest.Frame(guesttest.SYN(frame.Guest, web, 1024, 80)))
	f.Add(arpRequest(frame.Guest, frame.Gateway))
	f.Add(guesttest.Frame(badUDP(frame.Gateway, 53)))
	f.Add(guesttest.Frame(guesttest.IPv4(frame.Guest, frame.Gateway, 1, []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0})))
	guest, file := guesttest.New(f)
	s, err := New(NewHost(1000), file, &netproto.Attach{ID: "fuzz", Policy: netproto.Policy{Mode: netproto.ModeNone}},
		&Counters{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, m []byte) {
		if len(m) == 0 {
			return // the socket is closed
		}
		// Send the message unchanged. Then correct the fields for which package inspect would
		// refuse the message, and send it again.
		guest.Send(m)
		if at := frame.HeaderBytes + header.EthernetMinimumSize; len(m) >= at+header.IPv4MinimumSize {
			m = append(guesttest.Frame(nil), m[at:]...)
			p := header.IPv4(m[at:])
			p[0] = 0x45
			p.SetTotalLength(uint16(len(p)))
			copy(p[12:16], netip.MustParseAddr(frame.Guest).AsSlice())
			p.SetChecksum(0)
			p.SetChecksum(^p.CalculateChecksum())
			guest.Send(m)
		}
		select {
		case <-s.Ended():
			t.Error("the stack has ended")
		default:
		}
	})
}

// The number of the host's UDP ports that all sandboxes use in total is limited.
func TestUDPFlowsOfTheHostAreBounded(t *testing.T) {
	h := NewHost(2 * maxHostUDP)
	for range maxHostUDP {
		if !h.takeSocket(policy.UDP) {
			t.Fatal("refused too early")
		}
	}
	if h.takeSocket(policy.UDP) {
		t.Error("one more was given out")
	}
	if !h.takeSocket(policy.TCP) {
		t.Error("TCP has no room for UDP's sake")
	}
	h.giveSocket(policy.UDP)
	if !h.takeSocket(policy.UDP) || h.sockets.Load() != maxHostUDP+1 {
		t.Errorf("what was given back is not there: %d sockets", h.sockets.Load())
	}
}

// TestAttackManyLines checks that one sandbox can write only a limited number of lines per second
// to the flow log, for permitted and for refused flows. The log says how many lines are missing.
func TestAttackManyLines(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":80"), echo)
	r := newRig(t, w, "public")
	lines := &logBuffer{}
	r.host.Log.Set(lines)
	if r.logged.Limit() != refusalsPerSecond || r.logged.Burst() != refusalBurst || r.passes.Limit() != passesPerSecond ||
		r.passes.Burst() != passBurst {
		t.Error("the limits are others")
	}
	for _, c := range []struct {
		limiter *rate.Limiter
		flow    func()
		verdict string
	}{
		{r.passes, func() { _, _ = r.says(t, web+":80", "x") }, "pass"},
		{r.logged, func() { _, _ = r.dial(t, private+":80") }, "refuse"},
	} {
		count := func() int { return strings.Count(lines.String(), `"verdict":"`+c.verdict+`"`) }
		c.limiter.SetLimit(0)
		c.limiter.AllowN(time.Now(), c.limiter.Burst()-2) // leaves room for two lines
		for range 5 {
			c.flow()
		}
		// A line that is written late also counts the records that were dropped after the end of
		// the line's flow.
		waitFor(t, "three lines are missing", func() bool { return lines.lost(t)+r.host.Log.Missing() >= 3 })
		waitFor(t, "two are there", func() bool { return count() == 2 })
		c.limiter.SetLimit(rate.Inf)
		c.flow()
		waitFor(t, "a third, and they say so", func() bool { return count() >= 3 && lines.lost(t) >= 3 })
		lines.reset()
	}
}
