package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// upstream is one of the host's resolvers. Its zone has entries of the form "NAME=ADDRESS" or
// "NAME=>ALIAS".
type upstream struct {
	addr  netip.AddrPort
	asked atomic.Int32

	mu   sync.Mutex
	zone map[string]string

	answers, more []dnsmessage.Resource // if set, the answers and additional records for every question
	text          int                   // length of TXT answers in bytes
	mute          bool                  // whether it never answers
	forge         bool                  // whether it sends answers to other questions before the right answer
}

func newUpstream(t testing.TB, zone ...string) *upstream {
	t.Helper()
	u := &upstream{zone: map[string]string{}, text: 200}
	for _, entry := range zone {
		name, to, _ := strings.Cut(entry, "=")
		u.zone[name] = to
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u.addr = l.Addr().(*net.TCPAddr).AddrPort()
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(u.addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = l.Close(), c.Close() })
	go u.serveUDP(c)
	go u.serveTCP(l)
	return u
}

func (u *upstream) serveUDP(c *net.UDPConn) {
	buf := make([]byte, 4096)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		u.asked.Add(1)
		answer, mute, forge := u.answer(buf[:n], false)
		if mute {
			continue
		}
		if forge {
			forged := append([]byte(nil), answer...)
			forged[0]++
			_, _ = c.WriteToUDPAddrPort(forged, from)
			_, _ = c.WriteToUDPAddrPort([]byte("nonsense"), from)
		}
		_, _ = c.WriteToUDPAddrPort(answer, from)
	}
}

func (u *upstream) serveTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		u.asked.Add(1)
		var length [2]byte
		_, _ = io.ReadFull(c, length[:])
		query := make([]byte, binary.BigEndian.Uint16(length[:]))
		_, _ = io.ReadFull(c, query)
		answer, _, _ := u.answer(query, true)
		_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
		_ = c.Close()
	}
}

// set runs the callback, which may change the fields of u. Later answers depend on the new values.
func (u *upstream) set(change func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	change()
}

func (u *upstream) answer(query []byte, tcp bool) (answer []byte, mute, forge bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil, u.mute, u.forge
	}
	q := m.Questions[0]
	out := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true}, Questions: m.Questions}
	h := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 60}
	if u.answers != nil || u.more != nil {
		out.Answers, out.Additionals = u.answers, u.more
		p, err := out.Pack()
		if err != nil {
			panic(err)
		}
		return p, u.mute, u.forge
	}
	to, found := u.zone[strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))]
	switch {
	case !found:
		out.RCode = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeTXT:
		var text []string
		for n := u.text; n > 0; n -= 200 {
			text = append(text, strings.Repeat("x", min(n, 200)))
		}
		h.Type = q.Type
		out.Answers = append(out.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.TXTResource{TXT: text}})
		if u.text > 1000 && !tcp {
			out.Answers, out.Truncated = nil, true
		}
	case q.Type == dnsmessage.TypeA:
		if alias, ok := strings.CutPrefix(to, ">"); ok {
			h.Type = dnsmessage.TypeCNAME
			name := dnsmessage.MustNewName(alias + ".")
			out.Answers = append(out.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.CNAMEResource{CNAME: name}})
			h.Name, to = name, u.zone[alias]
		}
		h.Type = q.Type
		for a := range strings.SplitSeq(to, ",") {
			out.Answers = append(out.Answers, dnsmessage.Resource{Header: h,
				Body: &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()}})
		}
	}
	p, err := out.Pack()
	if err != nil {
		panic(err)
	}
	return p, u.mute, u.forge
}

type guest struct {
	*Guest
	refusals map[Reason]int
}

func newGuest(t testing.TB, allow func(string) (bool, Reason), servers ...*upstream) *guest {
	t.Helper()
	var r Resolver
	var addrs []netip.AddrPort
	for _, s := range servers {
		addrs = append(addrs, s.addr)
	}
	r.Set(addrs)
	g := &guest{refusals: map[Reason]int{}}
	g.Guest = New(&r, allow, func(_ string, reason Reason) { g.refusals[reason]++ })
	return g
}

func all(string) (bool, Reason) { return true, "" }

func pack(t testing.TB, name string, kind dnsmessage.Type, edns uint16) []byte {
	t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 4711, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name + "."), Type: kind, Class: dnsmessage.ClassINET}}}
	if edns > 0 {
		var h dnsmessage.ResourceHeader
		_ = h.SetEDNS0(int(edns), 0, false)
		m.Additionals = append(m.Additionals, dnsmessage.Resource{Header: h, Body: &dnsmessage.OPTResource{
			Options: []dnsmessage.Option{{Code: 65001, Data: []byte("smuggled")}}}})
	}
	p, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (g *guest) ask(t testing.TB, name string, kind dnsmessage.Type) dnsmessage.Message {
	t.Helper()
	return unpack(t, g.Answer(t.Context(), pack(t, name, kind, 1232), false))
}

func unpack(t testing.TB, p []byte) (m dnsmessage.Message) {
	t.Helper()
	if err := m.Unpack(p); err != nil || m.ID != 4711 || !m.Response {
		t.Fatalf("%x: %+v, %v", p, m.Header, err)
	}
	return m
}

func TestAnswersAreForwardedAndRemembered(t *testing.T) {
	u := newUpstream(t, "example.com=93.184.216.34,93.184.216.35", "www.example.com=>cdn.example.net",
		"cdn.example.net=93.184.216.36")
	u.set(func() { u.forge = true })
	g := newGuest(t, all, u)
	if m := g.ask(t, "Example.COM", dnsmessage.TypeA); len(m.Answers) != 2 {
		t.Errorf("%+v", m)
	}
	if m := g.ask(t, "www.example.com", dnsmessage.TypeA); len(m.Answers) != 2 {
		t.Errorf("%+v", m)
	}
	if m := g.ask(t, "missing.example.com", dnsmessage.TypeA); m.RCode != dnsmessage.RCodeNameError {
		t.Errorf("%+v", m)
	}
	for addr, want := range map[string][]string{"93.184.216.34": {"example.com"}, "93.184.216.35": {"example.com"},
		"93.184.216.36": {"www.example.com"}, "1.1.1.1": nil} {
		if got := g.Names(netip.MustParseAddr(addr)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s was given for %q, want %q", addr, got, want)
		}
	}
}

// Questions for IPv6 and for service bindings get empty answers. Sandboxes cannot connect by IPv6,
// and keys in service bindings would let clients hide the server's name.
func TestWhatIsAnsweredWithNothing(t *testing.T) {
	u := newUpstream(t, "example.com=93.184.216.34")
	g := newGuest(t, all, u)
	for _, kind := range []dnsmessage.Type{dnsmessage.TypeAAAA, typeSVCB, typeHTTPS} {
		if m := g.ask(t, "example.com", kind); m.RCode != 0 || len(m.Answers) != 0 {
			t.Errorf("%v: %+v", kind, m)
		}
	}
	for _, kind := range []dnsmessage.Type{dnsmessage.TypeAXFR, typeIXFR, dnsmessage.TypeALL} {
		if m := g.ask(t, "example.com", kind); m.RCode != dnsmessage.RCodeRefused {
			t.Errorf("%v: %+v", kind, m)
		}
	}
	if n := u.asked.Load(); n != 0 {
		t.Errorf("the resolver was asked %d times", n)
	}
}

func TestNamesAreRefusedByPolicy(t *testing.T) {
	u := newUpstream(t, "good.com=93.184.216.34", "bad.com=93.184.216.35")
	g := newGuest(t, func(name string) (bool, Reason) { return name == "good.com", "no-rule" }, u)
	if m := g.ask(t, "good.com", dnsmessage.TypeA); len(m.Answers) != 1 {
		t.Errorf("%+v", m)
	}
	if m := g.ask(t, "secret.bad.com", dnsmessage.TypeA); m.RCode != dnsmessage.RCodeRefused ||
		g.refusals["no-rule"] != 1 {
		t.Errorf("%+v, %v", m, g.refusals)
	}
	if n := u.asked.Load(); n != 1 {
		t.Errorf("the resolver was asked %d times", n)
	}
}

// If a resolver does not answer, the next resolver is asked. If there is no resolver, the guest
// receives an error at once.
func TestAnotherResolverIsAsked(t *testing.T) {
	mute, good := newUpstream(t), newUpstream(t, "example.com=93.184.216.34")
	mute.set(func() { mute.mute = true })
	if m := newGuest(t, all, mute, good).ask(t, "example.com", dnsmessage.TypeA); len(m.Answers) != 1 {
		t.Errorf("%+v", m)
	}
	if m := newGuest(t, all).ask(t, "example.com", dnsmessage.TypeA); m.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("%+v", m)
	}
}

// A long answer arrives by TCP. A UDP answer is no longer than the guest's query permits.
func TestLongAnswers(t *testing.T) {
	u := newUpstream(t, "example.com=93.184.216.34")
	u.set(func() { u.text = 700 })
	g := newGuest(t, all, u)
	if m := unpack(t, g.Answer(t.Context(), pack(t, "example.com", dnsmessage.TypeTXT, 0), false)); !m.Truncated ||
		len(m.Answers) != 0 {
		t.Errorf("without EDNS: %+v", m)
	}
	if m := g.ask(t, "example.com", dnsmessage.TypeTXT); m.Truncated || len(m.Answers) != 1 {
		t.Errorf("with EDNS: %+v", m)
	}
	u.set(func() { u.text = 5000 })
	if m := g.ask(t, "example.com", dnsmessage.TypeTXT); !m.Truncated {
		t.Errorf("%+v", m)
	}
	if m := unpack(t, g.Answer(t.Context(), pack(t, "example.com", dnsmessage.TypeTXT, 0), true)); len(m.Answers) != 1 {
		t.Errorf("by TCP: %+v", m)
	}
}

// Only the question of a guest's query is sent to the resolver.
func TestOnlyTheQuestionGetsOut(t *testing.T) {
	q := dnsmessage.Question{Name: dnsmessage.MustNewName("example.com."), Type: dnsmessage.TypeA,
		Class: dnsmessage.ClassINET}
	p, err := buildQuery(1, q, true)
	if err != nil || strings.Contains(string(p), "smuggled") {
		t.Errorf("%q, %v", p, err)
	}
	parsed, ok := parse(pack(t, "example.com", dnsmessage.TypeA, 4096), false)
	if !ok || !parsed.edns || parsed.room != udpBytes || parsed.question != q {
		t.Errorf("%+v", parsed)
	}
}

// TestTunnelVolume checks that a guest's queries are refused when the guest has sent or received
// too many bytes in names or text records, and when the guest has sent too many queries.
func TestTunnelVolume(t *testing.T) {
	u := newUpstream(t)
	long := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + "." + strings.Repeat("c", 60) + ".example.com"
	u.set(func() { u.zone[long], u.zone["example.com"] = "93.184.216.34", "93.184.216.34" })
	g := newGuest(t, all, u)
	for range 2 * nameBurst / len(long) {
		g.Answer(t.Context(), pack(t, long, dnsmessage.TypeAAAA, 0), false)
	}
	if g.refusals[Volume] == 0 {
		t.Errorf("names: %v", g.refusals)
	}
	g = newGuest(t, all, u)
	u.set(func() { u.text = 900 })
	for range 2 * otherBurst / u.text {
		g.ask(t, "example.com", dnsmessage.TypeTXT)
	}
	if g.refusals[Volume] == 0 {
		t.Errorf("texts: %v", g.refusals)
	}
	g = newGuest(t, all, u)
	for range 2 * queryBurst {
		g.Answer(t.Context(), pack(t, "a.b", dnsmessage.TypeAAAA, 0), false)
	}
	if g.refusals[Rate] == 0 {
		t.Errorf("queries: %v", g.refusals)
	}
}

func TestMemoryIsBoundedAndForgets(t *testing.T) {
	var m memory
	now := time.Now()
	for i := range 3 * maxMemory {
		m.put(fmt.Sprintf("%d.example.com", i), netip.AddrFrom4([4]byte{1, byte(i >> 10), byte(i >> 2), 1}), time.Second, now)
	}
	if len(m.order) != maxMemory || len(m.addrs) > maxMemory {
		t.Errorf("%d pairs, %d addresses", len(m.order), len(m.addrs))
	}
	addr := netip.MustParseAddr("9.9.9.9")
	m.put("a.example.com", addr, time.Second, now)
	m.put("b.example.com", addr, time.Hour, now)
	m.put("a.example.com", addr, time.Second, now)
	for after, want := range map[time.Duration][]string{0: {"b.example.com", "a.example.com"}, minKeep: {"b.example.com"},
		2 * time.Hour: nil} {
		if got := m.names(addr, now.Add(after)); !reflect.DeepEqual(got, want) {
			t.Errorf("after %v: %q, want %q", after, got, want)
		}
	}
}

func TestNamesOfOneAddressAreBounded(t *testing.T) {
	var m memory
	now, addr := time.Now(), netip.MustParseAddr("9.9.9.9")
	name := func(i int) string { return fmt.Sprintf("%d.example.com", i) }
	for i := range maxNames {
		m.put(name(i), addr, time.Hour, now)
	}
	m.put(name(0), addr, time.Hour, now) // added again, so it is the newest
	m.put(name(maxNames), addr, time.Hour, now)
	got := m.names(addr, now)
	if len(got) != maxNames || len(m.order) != maxNames {
		t.Errorf("%d names in %d pairs, want %d", len(got), len(m.order), maxNames)
	}
	for name, want := range map[string]bool{name(0): true, name(1): false, name(2): true, name(maxNames): true} {
		if slices.Contains(got, name) != want {
			t.Errorf("%s is remembered: %v, want %v", name, !want, want)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(pack(f, "example.com", dnsmessage.TypeA, 1232), false)
	f.Add(pack(f, "example.com", dnsmessage.TypeAAAA, 0), true)
	g := newGuest(f, all)
	f.Fuzz(func(t *testing.T, p []byte, tcp bool) {
		if a := g.Answer(context.Background(), p, tcp); a != nil && (len(a) < 12 || len(p) < 12 || a[0] != p[0] ||
			a[1] != p[1]) {
			t.Errorf("%x was answered with %x", p, a)
		}
	})
}

// FuzzRemember passes arbitrary answers to remember. The server that sends such answers may belong
// to the guest's owner.
func FuzzRemember(f *testing.F) {
	u := &upstream{zone: map[string]string{"example.com": "93.184.216.34"}}
	query := pack(f, "example.com", dnsmessage.TypeA, 0)
	answer, _, _ := u.answer(query, false)
	f.Add(answer)
	q, _ := parse(query, false)
	f.Fuzz(func(_ *testing.T, p []byte) { new(Guest).remember(q, p) })
}

// A name with non-ASCII letters must not count as an allowed ASCII name, because the conversion to
// lower case turns some letters, such as the Kelvin sign, into ASCII letters.
func TestNamesAreASCII(t *testing.T) {
	u := newUpstream(t)
	g := newGuest(t, all, u)
	if got := g.Answer(t.Context(), pack(t, "\u212Aernel.org", dnsmessage.TypeA, 0), false); got != nil ||
		g.refusals[Malformed] != 1 {
		t.Errorf("answered with %x; refused %v", got, g.refusals)
	}
}

// Refused queries also count against the limit. Above the limit, names are not compared with the
// policy.
func TestRefusedNamesAreLimited(t *testing.T) {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 1, RecursionDesired: true})
	if err := errors.Join(b.StartQuestions(), b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName("a.example."),
		Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET})); err != nil {
		t.Fatal(err)
	}
	query, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	compared, limited := 0, 0
	g := New(&Resolver{}, func(string) (bool, Reason) { compared++; return false, "no-rule" },
		func(_ string, reason Reason) {
			if reason == Rate {
				limited++
			}
		})
	g.queries.SetLimit(0)
	for range queryBurst + 10 {
		g.Answer(t.Context(), query, false)
	}
	if compared != queryBurst || limited != 10 {
		t.Errorf("%d names compared, %d queries too many; want %d and 10", compared, limited, queryBurst)
	}
}
