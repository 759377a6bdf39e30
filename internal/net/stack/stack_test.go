package stack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/forkd/forkd/internal/net/guesttest"
	"github.com/forkd/forkd/internal/net/nettest"
	"github.com/forkd/forkd/internal/net/policy"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/netproto"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// Addresses in the world.
const (
	web      = "93.184.216.34"
	web2     = "93.184.216.35"
	private  = "10.1.2.3"
	metadata = "169.254.169.254"
	foreign  = "8.8.8.8" // a DNS server that the host does not use
	resolver = "10.1.0.53"
)

// rig is a guest with a stack, in a world.
type rig struct {
	world *nettest.World
	guest *guesttest.Guest
	host  *Host
	*Stack
}

func newWorld(t testing.TB) *nettest.World {
	return nettest.New(t, web, web2, private, metadata, foreign, resolver)
}

// newRig returns a rig with a policy, which is written as in the tests of package policy, such as
// "allow example.com !1.2.3.4".
func newRig(t testing.TB, w *nettest.World, policy string) *rig {
	t.Helper()
	return addRig(t, w, NewHost(10000), policy, netproto.Limits{})
}

func addRig(t testing.TB, w *nettest.World, h *Host, policy string, l netproto.Limits) *rig {
	t.Helper()
	guest, file := guesttest.New(t)
	s, err := New(h, file, &netproto.Attach{ID: "sb-test", Policy: makePolicy(t, policy), Limits: l}, &Counters{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return &rig{world: w, guest: guest, host: h, Stack: s}
}

func makePolicy(t testing.TB, text string) netproto.Policy {
	t.Helper()
	words := strings.Fields(text)
	var allow, deny []string
	for _, w := range words[1:] {
		if d, ok := strings.CutPrefix(w, "!"); ok {
			deny = append(deny, d)
		} else {
			allow = append(allow, w)
		}
	}
	p, err := netproto.ParsePolicy(words[0], allow, deny)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (r *rig) dial(t testing.TB, to string) (*gonet.TCPConn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return r.guest.DialTCP(ctx, netip.MustParseAddrPort(to))
}

func (r *rig) mustDial(t testing.TB, to string) *gonet.TCPConn {
	t.Helper()
	c, err := r.dial(t, to)
	if err != nil {
		t.Fatalf("dial %s: %v", to, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// count returns how many flows were refused for a reason.
func (r *rig) count(reason string) uint64 {
	for _, f := range r.counters.Stats().Refused {
		if f.Reason == reason {
			return f.Count
		}
	}
	return 0
}

// waitFor polls until ok returns true.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// echo sends all data back until the other side has ended, and then closes the connection.
func echo(c net.Conn) {
	_, _ = io.Copy(c, c)
	_ = c.Close()
}

// pattern returns bytes without repeated parts.
func pattern(n int) []byte {
	p := make([]byte, 0, n+32)
	for sum := sha256.Sum256(nil); len(p) < n; sum = sha256.Sum256(sum[:]) {
		p = append(p, sum[:]...)
	}
	return p[:n]
}

// Bytes arrive unchanged, in both directions at the same time, and each direction is closed
// separately.
func TestTCPCarriesEveryByte(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":80"), echo)
	r := newRig(t, w, "public")
	for _, size := range []int{0, 1, 1460, 1461, 8 << 20} {
		c := r.mustDial(t, web+":80")
		sent := pattern(size)
		go func() {
			_, _ = c.Write(sent)
			_ = c.CloseWrite()
		}()
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes: got %d, %v", size, len(got), err)
		}
		_ = c.Close()
	}
	waitFor(t, "flows end", func() bool { return r.counters.Open.Load() == 0 })
	m := r.counters.Stats()
	if want := uint64(0 + 1 + 1460 + 1461 + 8<<20); m.UpBytes != want || m.DownBytes != want || m.Connections != 5 {
		t.Errorf("%+v", m)
	}
}

// If the server closes its direction first, it still receives data from the client, and vice versa.
func TestHalfClosePassesBothWays(t *testing.T) {
	w := newWorld(t)
	heard := make(chan string, 1)
	nettest.Serve(w.Listen(t, web+":80"), func(c net.Conn) {
		_, _ = io.WriteString(c, "hello")
		_ = c.(*net.TCPConn).CloseWrite()
		p, _ := io.ReadAll(c)
		heard <- string(p)
		_ = c.Close()
	})
	r := newRig(t, w, "public")
	c := r.mustDial(t, web+":80")
	p, err := io.ReadAll(c)
	if string(p) != "hello" || err != nil {
		t.Fatalf("%q, %v", p, err)
	}
	if _, err := io.WriteString(c, "good bye"); err != nil {
		t.Fatal(err)
	}
	_ = c.CloseWrite()
	if got := <-heard; got != "good bye" {
		t.Errorf("the server heard %q", got)
	}
}

// lines is a flow log.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func (l lines) Close() error { return nil }

// If one side resets the connection, the other side is reset too.
func TestResetsPassBothWays(t *testing.T) {
	w := newWorld(t)
	server := make(chan *net.TCPConn, 1)
	nettest.Serve(w.Listen(t, web+":80"), func(c net.Conn) { server <- c.(*net.TCPConn) })
	r := newRig(t, w, "public")
	log := make(lines, 10)
	r.host.Log.Set(log)

	c := r.mustDial(t, web+":80")
	s := <-server
	_ = s.SetLinger(0)
	_ = s.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the guest read %v from a server that reset", err)
	}
	if line := <-log; !strings.Contains(line, "connection reset by peer") {
		t.Errorf("the flow log does not say why it ended: %s", line)
	}

	_ = r.mustDial(t, web+":80")
	s = <-server
	r.guest.Die()
	<-r.Ended()
	r.Close()
	if _, err := s.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the server read %v from a guest that died", err)
	}
}

// Flows lists open connections with the numbers of bytes that they have carried so far. The
// connection that has carried data most recently is first. Flows lists only connections that the
// policy permits.
func TestOpenConnectionsAreListed(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":80"), echo)
	r := newRig(t, w, "public")
	if list := r.Flows(); len(list) != 0 {
		t.Fatalf("before the first connection: %+v", list)
	}
	talk := func(c net.Conn, text string) {
		t.Helper()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, len(text))); err != nil {
			t.Fatal(err)
		}
	}
	var open []net.Conn
	for n := range netproto.MaxFlows + 3 {
		open = append(open, r.mustDial(t, web+":80"))
		talk(open[n], strings.Repeat("x", n+1))
	}
	// An answer may arrive before the bytes of its question are counted.
	uncounted := func(f netproto.Flow) bool { return f.UpBytes == 0 || f.UpBytes != f.DownBytes }
	waitFor(t, "the bytes of all connections", func() bool { return !slices.ContainsFunc(r.Flows(), uncounted) })
	talk(open[0], "again") // the oldest connection has the latest data
	_, _ = r.dial(t, private+":80")
	var list []netproto.Flow
	waitFor(t, "the bytes of the oldest connection", func() bool {
		list = r.Flows()
		return len(list) == netproto.MaxFlows && list[0].UpBytes == 6 && list[0].DownBytes == 6
	})
	for i, f := range list {
		want := netproto.Flow{Protocol: "tcp", Address: web + ":80", UpBytes: f.UpBytes, DownBytes: f.UpBytes,
			Began: f.Began, Last: f.Last}
		now := time.Now().Unix()
		if f != want || f.Began > f.Last || f.Last > now || f.Began < now-600 {
			t.Errorf("%d: %+v, want %+v", i, f, want)
		}
		if i > 0 && f.Last > list[i-1].Last {
			t.Errorf("%d: it has later data than the connection before it", i)
		}
	}
	for _, c := range open[1:] {
		_ = c.Close()
	}
	waitFor(t, "one open connection", func() bool { return len(r.Flows()) == 1 })
}

func TestRefusedTCPIsReset(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, private+":80"), echo)
	r := newRig(t, w, "public")
	if _, err := r.dial(t, private+":80"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}
	waitFor(t, "the refusal is counted", func() bool { return r.count("private") == 1 })
	if _, err := r.dial(t, web+":81"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("where nobody listens: %v", err)
	}
	waitFor(t, "the other one counts as let through", func() bool { return r.counters.Passed.Load() == 1 })
}

func TestUDPBothWays(t *testing.T) {
	w := newWorld(t)
	server := w.ListenUDP(t, web+":123")
	go func() {
		p := make([]byte, 65536)
		for {
			n, from, err := server.ReadFrom(p)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(p[:n], from)
		}
	}()
	r := newRig(t, w, "public")
	c, err := r.guest.DialUDP(netip.MustParseAddrPort(web + ":123"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, size := range []int{1, 1472, 1473, 9000} { // 1473 and 9000 bytes need fragments
		sent := pattern(size)
		if _, err := c.Write(sent); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 65536)
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if n, err := c.Read(got); err != nil || !bytes.Equal(got[:n], sent) {
			t.Errorf("%d bytes: got %d, %v", size, n, err)
		}
	}
	if n := r.counters.Open.Load(); n != 1 {
		t.Errorf("%d flows", n)
	}
	r.Sweep(time.Now().Add(idleUDP + time.Second))
	waitFor(t, "an idle flow ends", func() bool { return r.counters.Open.Load() == 0 })
}

// An idle connection is reset after some time, and sooner if one side has closed its direction.
func TestIdleConnectionsEnd(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":80"), func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	nettest.Serve(w.Listen(t, web+":81"), func(c net.Conn) {
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	})
	r := newRig(t, w, "public")
	whole, half := r.mustDial(t, web+":80"), r.mustDial(t, web+":81")
	if _, err := half.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("the server has sent all, and the guest reads %v", err)
	}
	waitFor(t, "the half connection ends", func() bool {
		r.Sweep(time.Now().Add(idleHalf + time.Second))
		return r.counters.Open.Load() == 1
	})
	if _, err := whole.Write([]byte("x")); err != nil {
		t.Errorf("the other connection: %v", err)
	}
	waitFor(t, "the other connection ends", func() bool {
		r.Sweep(time.Now().Add(idleTCP + time.Second))
		return r.counters.Open.Load() == 0
	})
	if _, err := whole.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the guest reads %v from an idle connection", err)
	}
}

// The gateway answers echo requests to its own address. The policy decides about all other echo
// requests.
func TestEcho(t *testing.T) {
	w := newWorld(t)
	r := newRig(t, w, "public")
	allowPing(t)
	for to, want := range map[string][2]byte{frame.Gateway: {0, 0}, private: {3, 13}, web: {0, 0}, frame.Guest: {3, 13}} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		kind, code, err := r.guest.Ping(ctx, netip.MustParseAddr(to))
		cancel()
		if err != nil || [2]byte{kind, code} != want {
			t.Errorf("%s: type %d, code %d, %v, want %v", to, kind, code, err, want)
		}
	}
}

// allowPing permits ping sockets in this namespace. If the kernel does not support that, allowPing
// skips the test. TestEchoWithoutPingSockets then still checks that pings are answered with
// "destination unreachable".
func allowPing(t *testing.T) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 0"), 0); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("1 0"), 0) })
}

func TestEchoWithoutPingSockets(t *testing.T) {
	w := newWorld(t)
	r := newRig(t, w, "public")
	kind, code, err := r.guest.Ping(t.Context(), netip.MustParseAddr(web))
	if err != nil || kind != 3 || code != 1 {
		t.Errorf("type %d, code %d, %v", kind, code, err)
	}
}

// A new policy resets the flows that it denies, and no other flows.
func TestSetPolicyResetsWhatIsDenied(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":80"), echo)
	nettest.Serve(w.Listen(t, web2+":80"), echo)
	r := newRig(t, w, "public")
	denied, kept := r.mustDial(t, web+":80"), r.mustDial(t, web2+":80")
	r.SetPolicy(&netproto.SetPolicy{Policy: makePolicy(t, "public !"+web)})
	if _, err := denied.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a denied connection read %v", err)
	}
	if _, err := io.WriteString(kept, "x"); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 1)
	if _, err := kept.Read(p); err != nil || p[0] != 'x' {
		t.Errorf("%q, %v", p, err)
	}
	if _, err := r.dial(t, web+":80"); err == nil {
		t.Error("a new connection was let through")
	}
}

// SetPolicy compares only a limited number of names with rules, because requests for all other
// sandboxes wait during the comparison. When the number is reached, all remaining connections are
// reset.
func TestSetPolicyIsBounded(t *testing.T) {
	w := newWorld(t)
	l, h := netproto.Limits{Connections: 2000}, NewHost(10000)
	names := make([]string, 128)
	for i := range names {
		names[i] = fmt.Sprintf("n%d.example", i)
	}
	var rules []string
	for i := range netproto.MaxRules {
		rules = append(rules, fmt.Sprintf("r%d.example", i))
	}
	large := makePolicy(t, "public "+strings.Join(rules, " ")+" !"+strings.Join(rules, " !"))
	for _, c := range []struct {
		names  []string
		flows  int
		policy netproto.Policy
		all    bool // whether all connections stay open
	}{
		{names[:3], 1024, large, true},
		{names, 1024, makePolicy(t, "public !"+metadata), true},
		{names, 2000, large, false},
	} {
		r := addRig(t, w, h, "public", l)
		var flows []*flow
		for range c.flows {
			f, refusal := r.begin(policy.TCP, netip.MustParseAddrPort(web+":22"))
			if f == nil {
				t.Fatal(refusal)
			}
			f.Names = c.names
			if v := r.decide(f, nil); v != policy.Pass {
				t.Fatal(v)
			}
			flows = append(flows, f)
		}
		r.SetPolicy(&netproto.SetPolicy{Policy: c.policy, Limits: l})
		kept := 0
		for _, f := range flows {
			if f.ctx.Err() == nil {
				kept++
			}
			r.end(f)
		}
		each := (1 + len(c.names)) * (1 + len(c.policy.Allow) + len(c.policy.Deny))
		if c.all && kept != c.flows || !c.all && (kept == 0 || kept == c.flows || kept*each > maxComparisons) {
			t.Errorf("%d flows of %d names: %d are kept, %d comparisons each", c.flows, len(c.names), kept, each)
		}
	}
}
