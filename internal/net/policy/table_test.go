package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/netproto"
)

// TestDecideTable asks Decide about every combination of the values below. It compares the results
// with a model, which was written from docs/network.md and shares no code with Decide.

// spec is a rule of the model.
type spec struct {
	about  string // what the rule matches: name, below, address, network, all or other
	proto  string // tcp, udp, or empty
	lo, hi uint16 // range of ports; both are 0 for all ports
}

func (r *spec) named() bool { return r.about == "name" || r.about == "below" }

func (r *spec) text(to netip.Addr) string {
	text := map[string]string{"name": "a.example.com", "below": "*.example.com", "address": to.String(),
		"all":     "0.0.0.0/0",
		"network": netip.PrefixFrom(to, 24).Masked().String(), "other": "8.8.4.4"}[r.about]
	if r.proto != "" {
		text = r.proto + "/" + text
	}
	switch {
	case r.hi == 0:
		return text
	case r.hi == r.lo:
		return fmt.Sprintf("%s:%d", text, r.lo)
	}
	return fmt.Sprintf("%s:%d-%d", text, r.lo, r.hi)
}

// place is a destination.
type place struct {
	addr   string
	own    bool
	closed Reason // why the address is closed; empty if it is open
	always bool   // whether the address is closed even in mode open
	opened string // rules with one of these values of spec.about open the address
}

var places = []place{
	{"93.184.216.34", false, "", false, "address network all"},
	{"10.1.2.3", false, Private, false, "address network"},
	{"203.0.113.80", false, Reserved, false, "address network"},
	{"10.9.9.9", true, Host, true, "address"},
	{"11.7.0.1", true, Host, true, "address"},
	{"169.254.169.254", false, Metadata, true, "address"},
	{"127.0.0.1", false, Loopback, true, "address network"},
	{"192.0.2.3", false, SandboxNet, true, ""},
}

// said is what is known about the server's name when Decide is called.
type said struct {
	peeked  bool
	server  string
	unclear bool
	ech     bool
}

var sayings = []said{{}, {peeked: true}, {peeked: true, unclear: true}, {peeked: true, server: "a.example.com"},
	{peeked: true, server: "other.test"}, {peeked: true, server: "b.example.com"},
	{peeked: true, server: "a.example.com", ech: true},
	{peeked: true, server: "other.test", ech: true}}

// cell is one combination of the table.
type cell struct {
	mode        netproto.Mode
	allow, deny *spec // at most one rule each
	allowECH    bool
	proto       Protocol
	to          place
	port        uint16
	names       []string
	said
}

// covers reports whether the rule r applies to the protocol and the port of c. allows says that r
// is a rule of Allow.
func (c *cell) covers(r *spec, allows bool) bool {
	web := c.proto == TCP && (c.port == 80 || c.port == 443)
	switch {
	case r.proto != "" && r.proto != c.proto.String():
		return false
	case allows && r.named() && r.proto == "" && c.proto != TCP:
		return false
	case r.hi != 0:
		return c.proto != ICMP && r.lo <= c.port && c.port <= r.hi
	case allows && r.named():
		return web
	}
	return true
}

func (r *spec) matchesName(name string) bool {
	return r.about == "name" && name == "a.example.com" || r.about == "below" &&
		(name == "a.example.com" || name == "b.example.com")
}

func (r *spec) matchesAddress() bool { return strings.Contains("address network all", r.about) }

// want returns the decision of the model.
func (c *cell) want() (Verdict, Reason) {
	switch {
	case c.to.closed == SandboxNet:
		return Refuse, SandboxNet
	case c.mode == none:
		return Refuse, ModeNone
	}
	denies := c.deny != nil && c.covers(c.deny, false)
	if denies && (c.deny.matchesAddress() || slices.ContainsFunc(c.names, c.deny.matchesName) ||
		c.peeked && c.deny.matchesName(c.server)) {
		return Refuse, Denied
	}
	verdict, reason := c.wantAllowed()
	if verdict != Pass || !denies || !c.deny.named() {
		return verdict, reason
	}
	switch {
	case c.proto == UDP && c.port == 443:
		return Refuse, QUIC
	case c.proto != TCP || c.port != 80 && c.port != 443:
		return Pass, reason
	case !c.peeked:
		return Peek, reason
	case c.unclear:
		return Refuse, Unclear
	case c.ech && !c.allowECH:
		return Refuse, ECH
	}
	return Pass, reason
}

func (c *cell) wantAllowed() (Verdict, Reason) {
	allows := c.allow != nil && c.covers(c.allow, true)
	dns := c.proto != ICMP && (c.port == 53 || c.port == 853)
	switch {
	case allows && slices.Contains(strings.Fields(c.to.opened), c.allow.about) && (!dns || c.allow.hi != 0):
		return Pass, ByRule
	case c.to.closed != "" && (c.to.always || c.mode != open):
		return Refuse, c.to.closed
	case dns:
		return Refuse, ForeignDNS
	case c.mode != listed:
		return Pass, ByMode
	case !allows || !slices.ContainsFunc(c.names, c.allow.matchesName):
		return Refuse, NoRule
	case c.proto == UDP && c.port == 443:
		return Refuse, QUIC
	case c.proto != TCP || c.port != 80 && c.port != 443:
		return Pass, ByName
	case !c.peeked:
		return Peek, ByName
	case c.server == "":
		return Refuse, NoName
	case !c.allow.matchesName(c.server):
		return Refuse, OtherName
	case !slices.Contains(c.names, c.server):
		return Refuse, NameAddress
	case c.ech && !c.allowECH:
		return Refuse, ECH
	}
	return Pass, ByName
}

// specs returns every rule of the table, and nil for "no rule".
func specs() []*spec {
	list := []*spec{nil}
	for _, about := range []string{"name", "below", "address", "network", "all", "other"} {
		for _, proto := range []string{"", "tcp", "udp"} {
			for _, ports := range [][2]uint16{{}, {443, 443}, {400, 500}, {53, 53}, {80, 80}} {
				r := &spec{about, proto, ports[0], ports[1]}
				if r.named() && proto == "udp" && r.hi == 0 {
					continue // a rule for a name over UDP needs a port
				}
				list = append(list, r)
			}
		}
	}
	return list
}

// rule returns a list that contains only r.
func (r *spec) rule(t *testing.T, to netip.Addr) []netproto.Rule {
	if r == nil {
		return nil
	}
	parsed, err := netproto.ParseRule(r.text(to))
	if err != nil {
		t.Fatal(err)
	}
	return []netproto.Rule{parsed}
}

// flows calls f with every combination of the table that is a flow to the given place.
func flows(to place, f func(c cell)) {
	for _, proto := range []Protocol{TCP, UDP, ICMP} {
		ports := []uint16{53, 80, 443, 450, 853, 8443}
		if proto == ICMP {
			ports = []uint16{0}
		}
		for _, port := range ports {
			for _, names := range [][]string{nil, {"a.example.com"}, {"other.test"}, {"other.test", "a.example.com"},
				{"example.com"}} {
				for i, s := range sayings {
					if i > 0 && (proto != TCP || port != 80 && port != 443) {
						break // the server's name is not peeked for such a flow
					}
					f(cell{to: to, proto: proto, port: port, names: names, said: s})
				}
			}
		}
	}
}

func TestDecideTable(t *testing.T) {
	all := &spec{about: "all"}
	cells, wrong := 0, 0
	for _, r := range specs() {
		for _, lists := range [][2]*spec{{r, nil}, {nil, r}, {all, r}} {
			for _, to := range places {
				addr := netip.MustParseAddr(to.addr)
				allow, deny := lists[0].rule(t, addr), lists[1].rule(t, addr)
				flows(to, func(c cell) {
					f := Flow{Protocol: c.proto, To: netip.AddrPortFrom(addr, c.port), Own: to.own, Names: c.names, Peeked: c.peeked,
						Server: c.server, Unclear: c.unclear, ECH: c.ech}
					for _, mode := range []netproto.Mode{none, public, listed, open} {
						for _, ech := range []bool{false, true} {
							if ech && !c.ech {
								continue // AllowECH has no effect without an encrypted name
							}
							c.mode, c.allow, c.deny, c.allowECH = mode, lists[0], lists[1], ech
							p := netproto.Policy{Mode: mode, Allow: allow, Deny: deny, AllowECH: ech}
							cells++
							verdict, reason := Decide(&p, &f)
							if v, r := c.want(); verdict != v || reason != r {
								wrong++
								t.Errorf("%v allow %v deny %v ech %v: %+v: %v, %s; want %v, %s", mode, netproto.Texts(allow),
									netproto.Texts(deny), ech,
									f, verdict, reason, v, r)
							}
							if wrong > 20 {
								t.Fatal("and more")
							}
							checkFix(t, p, f, verdict, reason)
						}
					}
				})
			}
		}
	}
	t.Logf("%d cells", cells)
}

// checkFix applies the fix that Explain suggests for a refusal, and checks that the flow is then
// permitted.
func checkFix(t *testing.T, p netproto.Policy, f Flow, verdict Verdict, reason Reason) {
	if verdict != Refuse {
		return
	}
	why, fix := Explain(&p, &f, reason)
	if why == "" {
		t.Fatalf("%s is not explained", reason)
	}
	// Decide knew the server's name when it refused this flow. At the beginning of a new
	// connection, the name is unknown again.
	if reason == NoRule {
		f.Peeked, f.Server, f.Unclear, f.ECH = false, "", false, false
	}
	_, flags, ok := strings.Cut(fix, "allow it with ")
	if !ok {
		return
	}
	words := strings.Fields(flags)
	for i, word := range words {
		switch word {
		case "--net":
			if words[i+1] != p.Mode.String() {
				t.Fatalf("%q changes the mode %v", fix, p.Mode)
			}
		case "--allow":
			rule, err := netproto.ParseRule(words[i+1])
			if err != nil {
				t.Fatal(err)
			}
			p.Allow = append(slices.Clone(p.Allow), rule)
		case "--allow-ech":
			p.AllowECH = true
		}
	}
	// The flow may still be refused for another reason, by a deny rule for a name, or because of an
	// encrypted name.
	if v, r := Decide(&p, &f); v == Refuse && (r == reason || len(p.Deny) == 0 && r != ECH) {
		t.Fatalf("%+v, refused for %s: %q does not let it through: %s", f, reason, fix, r)
	}
}

// The guest can make DNS give any name for an address. So a fix contains a name only if the
// connection named its server by this name.
func TestFixDoesNotTrustNamesOfTheGuest(t *testing.T) {
	f := Flow{To: netip.MustParseAddrPort("203.0.113.80:443"), Names: []string{"git.test", "evil.test"}, Peeked: true}
	for server, want := range map[string]string{"": "203.0.113.80:443", "other.test": "203.0.113.80:443",
		"git.test": "git.test"} {
		f.Server = server
		if _, fix := Explain(&netproto.Policy{Mode: netproto.ModeAllow}, &f, NoRule); fix != "allow it with --allow "+want {
			t.Errorf("server %q: %q, want %s", server, fix, want)
		}
	}
}
