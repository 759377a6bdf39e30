package policy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/netproto"
)

const (
	none   = netproto.ModeNone
	public = netproto.ModePublic
	listed = netproto.ModeAllow
	open   = netproto.ModeOpen
)

func makePolicy(t testing.TB, mode netproto.Mode, rules string) *netproto.Policy {
	t.Helper()
	var lists [2][]string // allow, deny
	for _, text := range strings.Fields(rules) {
		if denied, ok := strings.CutPrefix(text, "!"); ok {
			lists[1] = append(lists[1], denied)
		} else {
			lists[0] = append(lists[0], text)
		}
	}
	if mode == none && lists[0] != nil {
		p := makePolicy(t, open, rules)
		p.Mode = none
		return p
	}
	p, err := netproto.ParsePolicy(mode.String(), lists[0], lists[1])
	if err != nil {
		t.Fatal(err)
	}
	return &p
}

// makeFlow parses a text such as "tcp/1.2.3.4:443 own names=a,b server=a".
func makeFlow(t testing.TB, text string) *Flow {
	t.Helper()
	words := strings.Fields(text)
	protocol, to, _ := strings.Cut(words[0], "/")
	f := &Flow{Protocol: map[string]Protocol{"tcp": TCP, "udp": UDP, "icmp": ICMP}[protocol]}
	if f.Protocol == ICMP {
		f.To = netip.AddrPortFrom(netip.MustParseAddr(to), 0)
	} else {
		f.To = netip.MustParseAddrPort(to)
	}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "own":
			f.Own = true
		case "ech":
			f.ECH = true
		case "names":
			f.Names = strings.Split(value, ",")
		case "server":
			f.Peeked, f.Server = true, value
		default:
			t.Fatalf("unknown word %q", word)
		}
	}
	return f
}

func TestDecide(t *testing.T) {
	for _, c := range []struct {
		mode    netproto.Mode
		rules   string // rules of Allow; rules of Deny begin with "!"
		flow    string
		verdict Verdict
		reason  Reason
	}{
		// Mode none.
		{none, "", "tcp/1.1.1.1:443", Refuse, ModeNone},
		{none, "", "icmp/1.1.1.1", Refuse, ModeNone},
		{none, "1.1.1.1 example.com", "tcp/1.1.1.1:443 names=example.com server=example.com", Refuse, ModeNone},

		// Mode public: the internet.
		{public, "", "tcp/1.1.1.1:443", Pass, ByMode},
		{public, "", "tcp/1.1.1.1:22", Pass, ByMode},
		{public, "", "udp/1.1.1.1:123", Pass, ByMode},
		{public, "", "icmp/1.1.1.1", Pass, ByMode},
		{public, "", "tcp/1.1.1.1:443 names=example.com", Pass, ByMode},
		// Mode public: the closed ranges, first and last address.
		{public, "", "tcp/10.0.0.0:80", Refuse, Private},
		{public, "", "tcp/10.255.255.255:80", Refuse, Private},
		{public, "", "tcp/11.0.0.0:80", Pass, ByMode},
		{public, "", "udp/172.16.0.0:80", Refuse, Private},
		{public, "", "tcp/172.31.255.255:80", Refuse, Private},
		{public, "", "tcp/172.32.0.0:80", Pass, ByMode},
		{public, "", "icmp/192.168.0.0", Refuse, Private},
		{public, "", "tcp/192.168.255.255:80", Refuse, Private},
		{public, "", "tcp/127.0.0.1:80", Refuse, Loopback},
		{public, "", "tcp/127.255.255.255:80", Refuse, Loopback},
		{public, "", "tcp/0.0.0.0:80", Refuse, Loopback},
		{public, "", "tcp/0.255.255.255:80", Refuse, Loopback},
		{public, "", "tcp/169.254.0.1:80", Refuse, LinkLocal},
		{public, "", "tcp/169.254.169.254:80", Refuse, Metadata},
		{public, "", "tcp/169.254.170.2:80", Refuse, Metadata},
		{public, "", "tcp/100.100.100.200:80", Refuse, Metadata},
		{public, "", "tcp/192.0.0.192:80", Refuse, Metadata},
		{public, "", "tcp/168.63.129.16:80", Refuse, Metadata},
		{public, "", "tcp/100.64.0.0:80", Refuse, CarrierNAT},
		{public, "", "tcp/100.127.255.255:80", Refuse, CarrierNAT},
		{public, "", "udp/224.0.0.1:5353", Refuse, Multicast},
		{public, "", "udp/239.255.255.250:1900", Refuse, Multicast},
		{public, "", "udp/255.255.255.255:67", Refuse, Broadcast},
		{public, "", "tcp/192.0.0.1:80", Refuse, Reserved},
		{public, "", "tcp/192.88.99.1:80", Refuse, Reserved},
		{public, "", "tcp/198.18.0.1:80", Refuse, Reserved},
		{public, "", "tcp/198.51.100.1:80", Refuse, Reserved},
		{public, "", "tcp/203.0.113.1:80", Refuse, Reserved},
		{public, "", "tcp/240.0.0.1:80", Refuse, Reserved},
		{public, "", "tcp/192.0.2.1:80", Refuse, SandboxNet},
		{public, "", "tcp/192.0.2.3:80", Refuse, SandboxNet},
		{public, "", "tcp/1.1.1.1:80 own", Refuse, Host},
		{public, "", "tcp/10.0.0.5:8889 own", Refuse, Host},
		{public, "", "tcp/127.0.0.1:80 own", Refuse, Loopback},
		// The same addresses in other notations.
		{public, "", "tcp/[::ffff:127.0.0.1]:80", Refuse, Loopback},
		{public, "", "tcp/[::ffff:10.0.0.1]:80", Refuse, Private},
		{public, "", "tcp/[::ffff:169.254.169.254]:80", Refuse, Metadata},
		{public, "", "tcp/[::ffff:0.0.0.0]:80", Refuse, Loopback},
		{public, "", "tcp/[::ffff:1.1.1.1]:80", Pass, ByMode},
		{open, "", "tcp/[::1]:80", Refuse, IPv6},
		{open, "", "tcp/[::]:80", Refuse, IPv6},
		{open, "", "tcp/[fd00:ec2::254]:80", Refuse, IPv6},
		{open, "", "tcp/[64:ff9b::7f00:1]:80", Refuse, IPv6},
		{open, "", "tcp/[2606:4700::1111]:443", Refuse, IPv6},
		// Mode public: a rule for addresses within a closed range opens these addresses.
		{public, "10.1.0.0/16", "tcp/10.1.2.3:80", Pass, ByRule},
		{public, "10.1.0.0/16", "tcp/10.2.2.3:80", Refuse, Private},
		{public, "10.1.0.0/16:5432", "tcp/10.1.2.3:80", Refuse, Private},
		{public, "udp/10.1.0.0/16", "tcp/10.1.2.3:80", Refuse, Private},
		{public, "10.1.0.0/16", "icmp/10.1.2.3", Pass, ByRule},
		{public, "10.1.0.0/16:80", "icmp/10.1.2.3", Refuse, Private},
		{public, "0.0.0.0/0", "tcp/10.1.2.3:80", Refuse, Private},
		{public, "0.0.0.0/0", "tcp/127.0.0.1:80", Refuse, Loopback},
		{public, "127.0.0.1:8080", "tcp/127.0.0.1:8080", Pass, ByRule},
		{public, "127.0.0.1:8080", "tcp/0.0.0.0:8080", Refuse, Loopback},
		{public, "127.0.0.1:8080", "tcp/[::ffff:127.0.0.1]:8080", Pass, ByRule},
		{public, "169.254.169.254:80", "tcp/169.254.169.254:80", Pass, ByRule},
		{public, "169.254.0.0/16", "tcp/169.254.169.254:80", Refuse, Metadata},
		{public, "100.64.0.0/10", "tcp/100.100.100.200:80", Refuse, Metadata},
		{public, "10.0.0.0/8", "tcp/10.0.0.5:80 own", Refuse, Host},
		{public, "10.0.0.5:80", "tcp/10.0.0.5:80 own", Pass, ByRule},
		{public, "192.0.2.0/24", "tcp/192.0.2.3:80", Refuse, SandboxNet},
		// Rebinding: a name opens no closed range.
		{public, "example.com", "tcp/10.0.0.1:80 names=example.com", Refuse, Private},
		{public, "example.com", "tcp/10.0.0.1:80 names=example.com server=example.com", Refuse, Private},
		{listed, "example.com", "tcp/10.0.0.1:80 names=example.com server=example.com", Refuse, Private},
		{listed, "example.com", "tcp/127.0.0.1:443 names=example.com server=example.com", Refuse, Loopback},
		{listed, "example.com:22", "tcp/169.254.169.254:22 names=example.com", Refuse, Metadata},
		{listed, "example.com", "tcp/1.1.1.1:443 own names=example.com server=example.com", Refuse, Host},

		// Mode allow: rules for addresses.
		{listed, "", "tcp/1.1.1.1:443", Refuse, NoRule},
		{listed, "1.1.1.1", "tcp/1.1.1.1:443", Pass, ByRule},
		{listed, "1.1.1.1", "udp/1.1.1.1:443", Pass, ByRule},
		{listed, "1.1.1.1", "icmp/1.1.1.1", Pass, ByRule},
		{listed, "1.1.1.1:443", "icmp/1.1.1.1", Refuse, NoRule},
		{listed, "tcp/1.1.1.1", "udp/1.1.1.1:443", Refuse, NoRule},
		{listed, "1.1.1.0/24:80-90", "tcp/1.1.1.7:79", Refuse, NoRule},
		{listed, "1.1.1.0/24:80-90", "tcp/1.1.1.7:80", Pass, ByRule},
		{listed, "1.1.1.0/24:80-90", "tcp/1.1.1.7:90", Pass, ByRule},
		{listed, "1.1.1.0/24:80-90", "tcp/1.1.1.7:91", Refuse, NoRule},
		{listed, "10.0.0.0/8", "tcp/10.1.1.1:1", Pass, ByRule},
		{listed, "0.0.0.0/0", "tcp/8.8.4.4:443", Pass, ByRule},
		{listed, "0.0.0.0/0", "tcp/10.1.1.1:443", Refuse, Private},
		{listed, "10.0.0.0/8", "tcp/172.16.0.1:1", Refuse, Private},
		// Mode allow: rules for names. DNS must have returned the address for the name, and the
		// connection must name the server.
		{listed, "example.com", "tcp/1.1.1.1:443", Refuse, NoRule},
		{listed, "example.com", "tcp/1.1.1.1:443 server=example.com", Refuse, NoRule},
		{listed, "example.com", "tcp/1.1.1.1:443 names=example.com", Peek, ByName},
		{listed, "example.com", "tcp/1.1.1.1:80 names=example.com", Peek, ByName},
		{listed, "example.com", "tcp/1.1.1.1:443 names=example.com server=example.com", Pass, ByName},
		{listed, "example.com", "tcp/1.1.1.1:443 names=example.com server=", Refuse, NoName},
		{listed, "example.com", "tcp/1.1.1.1:443 names=example.com server=other.com", Refuse, OtherName},
		{listed, "example.com other.com", "tcp/1.1.1.1:443 names=example.com server=other.com", Refuse, NameAddress},
		{listed, "example.com other.com", "tcp/1.1.1.1:443 names=example.com,other.com server=other.com", Pass, ByName},
		{listed, "example.com", "tcp/1.1.1.1:443 names=example.com,other.com server=other.com", Refuse, OtherName},
		{listed, "example.com", "tcp/1.1.1.1:22 names=example.com", Refuse, NoRule},
		{listed, "example.com", "udp/1.1.1.1:443 names=example.com", Refuse, NoRule},
		{listed, "example.com", "icmp/1.1.1.1 names=example.com", Refuse, NoRule},
		{listed, "example.com:22", "tcp/1.1.1.1:22 names=example.com", Pass, ByName},
		{listed, "example.com:22", "tcp/1.1.1.1:443 names=example.com", Refuse, NoRule},
		{listed, "example.com:443", "tcp/1.1.1.1:443 names=example.com", Peek, ByName},
		{listed, "example.com:443", "udp/1.1.1.1:443 names=example.com", Refuse, NoRule},
		{listed, "*.example.com:400-500", "udp/1.1.1.1:450 names=a.example.com", Refuse, NoRule},
		{listed, "udp/example.com:443", "udp/1.1.1.1:443 names=example.com", Refuse, QUIC},
		{listed, "udp/example.com:123", "udp/1.1.1.1:123 names=example.com", Pass, ByName},
		{listed, "example.com udp/1.1.1.1:443", "udp/1.1.1.1:443 names=example.com", Pass, ByRule},
		{listed, "example.com", "tcp/1.1.1.1:443 names=example.com server=example.com ech", Refuse, ECH},
		{listed, "1.1.1.1:443", "tcp/1.1.1.1:443 ech server=other.com", Pass, ByRule},
		{listed, "*.example.com", "tcp/1.1.1.1:443 names=a.b.example.com server=a.b.example.com", Pass, ByName},
		{listed, "*.example.com", "tcp/1.1.1.1:443 names=example.com server=example.com", Refuse, NoRule},
		{listed, "*.example.com", "tcp/1.1.1.1:443 names=badexample.com server=badexample.com", Refuse, NoRule},
		{listed, "example.com", "tcp/1.1.1.1:443 names=a.example.com", Refuse, NoRule},
		{listed, "example.com 1.1.1.1:443", "tcp/1.1.1.1:443 names=example.com", Pass, ByRule},

		// Mode open.
		{open, "", "tcp/10.0.0.1:80", Pass, ByMode},
		{open, "", "tcp/192.168.1.1:80", Pass, ByMode},
		{open, "", "udp/224.0.0.1:5353", Pass, ByMode},
		{open, "", "tcp/198.18.0.1:80", Pass, ByMode},
		{open, "", "tcp/127.0.0.1:80", Refuse, Loopback},
		{open, "", "tcp/0.0.0.0:80", Refuse, Loopback},
		{open, "", "tcp/169.254.1.1:80", Refuse, LinkLocal},
		{open, "", "tcp/169.254.169.254:80", Refuse, Metadata},
		{open, "", "tcp/100.100.100.200:80", Refuse, Metadata},
		{open, "", "tcp/10.0.0.5:80 own", Refuse, Host},
		{open, "", "tcp/192.0.2.3:80", Refuse, SandboxNet},
		{open, "127.0.0.0/8", "tcp/127.0.0.1:80", Pass, ByRule},
		{open, "10.0.0.5", "tcp/10.0.0.5:80 own", Pass, ByRule},

		// DNS that bypasses the gateway.
		{public, "", "udp/8.8.8.8:53", Refuse, ForeignDNS},
		{public, "", "tcp/8.8.8.8:53", Refuse, ForeignDNS},
		{public, "", "tcp/8.8.8.8:853", Refuse, ForeignDNS},
		{public, "", "udp/8.8.8.8:853", Refuse, ForeignDNS},
		{open, "", "udp/8.8.8.8:53", Refuse, ForeignDNS},
		{listed, "8.8.8.8", "udp/8.8.8.8:53", Refuse, ForeignDNS},
		{listed, "8.8.8.8:53", "udp/8.8.8.8:53", Pass, ByRule},
		{public, "8.8.8.8:853", "tcp/8.8.8.8:853", Pass, ByRule},
		{public, "8.8.8.8:853", "tcp/8.8.8.8:53", Refuse, ForeignDNS},
		{listed, "example.com:53", "udp/1.1.1.1:53 names=example.com", Refuse, ForeignDNS},
		{public, "", "icmp/8.8.8.8", Pass, ByMode},

		// Deny wins.
		{public, "!1.1.1.0/24", "tcp/1.1.1.1:443", Refuse, Denied},
		{public, "!1.1.1.0/24:443", "tcp/1.1.1.1:80", Pass, ByMode},
		{public, "!1.1.1.0/24", "icmp/1.1.1.1", Refuse, Denied},
		{public, "!udp/1.1.1.0/24", "icmp/1.1.1.1", Pass, ByMode},
		{public, "10.1.0.0/16 !10.1.2.3", "tcp/10.1.2.3:80", Refuse, Denied},
		{listed, "1.1.1.1 !1.1.1.1:22", "tcp/1.1.1.1:22", Refuse, Denied},
		{open, "!10.0.0.0/8", "tcp/10.0.0.1:80", Refuse, Denied},
		{open, "!10.0.0.0/8", "tcp/[::ffff:10.0.0.1]:80", Refuse, Denied},
		{listed, "*.example.com !bad.example.com", "tcp/1.1.1.1:443 names=bad.example.com", Refuse, Denied},
		{listed, "*.example.com !bad.example.com", "tcp/1.1.1.1:443 names=a.example.com server=bad.example.com", Refuse,
			Denied},
		{listed, "*.example.com !bad.example.com", "tcp/1.1.1.1:443 names=a.example.com server=a.example.com", Pass, ByName},
		{public, "!example.com", "tcp/1.1.1.1:22 names=example.com", Refuse, Denied},
		{public, "!example.com", "udp/1.1.1.1:443 names=example.com", Refuse, Denied},
		{public, "!example.com", "udp/1.1.1.1:443 names=front.example", Refuse, QUIC},
		{public, "!example.com", "udp/1.1.1.1:443", Refuse, QUIC},
		{public, "!example.com", "udp/1.1.1.1:123", Pass, ByMode},
		{public, "!tcp/example.com", "udp/1.1.1.1:443", Pass, ByMode},
		{public, "!example.com:22", "udp/1.1.1.1:443", Pass, ByMode},
		{public, "!example.com", "tcp/1.1.1.1:443 server=front.example ech", Refuse, ECH},
		{public, "", "tcp/1.1.1.1:443 server=front.example ech", Pass, ByMode},
		{public, "!example.com", "tcp/1.1.1.1:443", Peek, ByMode},
		{public, "!example.com", "tcp/1.1.1.1:443 server=example.com", Refuse, Denied},
		{public, "!example.com", "tcp/1.1.1.1:443 server=other.com", Pass, ByMode},
		{public, "!example.com", "tcp/1.1.1.1:443 server=", Pass, ByMode},
		{public, "!example.com", "tcp/1.1.1.1:22", Pass, ByMode},
		{public, "!example.com:22", "tcp/1.1.1.1:443 names=example.com", Pass, ByMode},
		{public, "!example.com:22", "tcp/1.1.1.1:22 names=example.com", Refuse, Denied},
		{none, "!1.1.1.1", "tcp/1.1.1.1:443", Refuse, ModeNone},
	} {
		p, f := makePolicy(t, c.mode, c.rules), makeFlow(t, c.flow)
		if verdict, reason := Decide(p, f); verdict != c.verdict || reason != c.reason {
			t.Errorf("%v [%s] %s: %v, %s; want %v, %s", c.mode, c.rules, c.flow, verdict, reason, c.verdict, c.reason)
		}
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		mode   netproto.Mode
		rules  string
		name   string
		answer bool
		reason Reason
	}{
		{none, "", "example.com", false, ModeNone},
		{public, "", "example.com", true, ByMode},
		{open, "", "example.com", true, ByMode},
		{public, "!example.com", "example.com", false, Denied},
		{public, "!*.example.com", "a.example.com", false, Denied},
		{public, "!example.com:22", "example.com", true, ByMode},
		{public, "", "nas", false, PrivateName},
		{public, "", "", false, PrivateName},
		{public, "", "printer.local", false, PrivateName},
		{public, "", "local", false, PrivateName},
		{public, "", "db.corp.internal", false, PrivateName},
		{public, "", "router.home.arpa", false, PrivateName},
		{public, "", "x.localhost", false, PrivateName},
		{public, "", "4.3.2.10.in-addr.arpa", false, PrivateName},
		{public, "", "8.8.8.8.in-addr.arpa", false, PrivateName},
		{public, "", "1.0.0.0.d.f.ip6.arpa", false, PrivateName},
		{public, "", "local.example.com", true, ByMode},
		{public, "", "myinternal.example", true, ByMode},
		{public, "git.corp.internal 10.1.2.3", "git.corp.internal", true, ByName},
		{public, "git.corp.internal 10.1.2.3", "other.corp.internal", false, PrivateName},
		{public, "nas !nas", "nas", false, Denied},
		{open, "", "nas", true, ByMode},
		{open, "", "4.3.2.10.in-addr.arpa", true, ByMode},
		{listed, "nas", "nas", true, ByName},
		{listed, "example.com", "example.com", true, ByName},
		{listed, "example.com:22", "example.com", true, ByName},
		{listed, "example.com", "a.example.com", false, NoRule},
		{listed, "*.example.com", "a.example.com", true, ByName},
		{listed, "1.1.1.1", "example.com", false, NoRule},
		{listed, "*.example.com !a.example.com", "a.example.com", false, Denied},
	} {
		p := makePolicy(t, c.mode, c.rules)
		if answer, reason := Names(p, c.name); answer != c.answer || reason != c.reason {
			t.Errorf("%v [%s] %s: %v, %s; want %v, %s", c.mode, c.rules, c.name, answer, reason, c.answer, c.reason)
		}
	}
}

// FuzzDecide checks three properties of Decide. If the server is known, the verdict is never Peek.
// Mode none permits nothing. Loopback is permitted only by a rule for loopback.
func FuzzDecide(f *testing.F) {
	f.Add(uint8(2), []byte{1, 1, 1, 1}, uint16(443), uint8(0), "a.example", "a.example", "a.example")
	f.Add(uint8(4), []byte{127, 0, 0, 1}, uint16(53), uint8(1), "", "", "0.0.0.0/0")
	f.Fuzz(func(t *testing.T, mode uint8, addr []byte, port uint16, protocol uint8, name, server, rule string) {
		a, ok := netip.AddrFromSlice(addr)
		r, err := netproto.ParseRule(rule)
		if !ok || err != nil {
			return
		}
		p := &netproto.Policy{Mode: netproto.Mode(mode%4) + none, Allow: []netproto.Rule{r}}
		flow := &Flow{Protocol: Protocol(protocol % 3), To: netip.AddrPortFrom(a, port), Names: []string{name}, Peeked: true,
			Server: server}
		verdict, _ := Decide(p, flow)
		loopback := a.Unmap().IsLoopback() && (r.IsName() || !netproto.Within(r.Prefix, netip.MustParsePrefix("127.0.0.0/8")))
		if verdict == Peek || verdict == Pass && (p.Mode == none || loopback || !a.Unmap().Is4()) {
			t.Errorf("%+v, %+v: %v", p, flow, verdict)
		}
		p.Deny = slices.Clone(p.Allow)
		if verdict, _ := Decide(p, flow); verdict == Pass && !r.IsName() && r.Prefix.Contains(a.Unmap()) && !r.HasPorts() &&
			r.Protocol == netproto.AnyProtocol {
			t.Errorf("%+v, %+v passes what is denied", p, flow)
		}
	})
}
