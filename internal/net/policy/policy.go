// Package policy decides whether a sandbox may open a connection. Decide is a pure function of the
// sandbox's policy and the known facts about the connection. It returns a verdict and its reason.
//
// The package has no state and does no I/O. The caller finds out which names an address has, and
// which server the connection is for (packages dns and peek). Package netproto defines which ranges
// of addresses are closed, such as private ones.
package policy

import (
	"net/netip"
	"slices"

	"github.com/forkd/forkd/internal/proto/netproto"
)

// Protocol is the protocol of a flow.
type Protocol uint8

// Protocols of flows.
const (
	TCP Protocol = iota
	UDP
	ICMP // echo requests
)

// String returns the protocol's name in flow logs.
func (p Protocol) String() string { return [...]string{"tcp", "udp", "icmp"}[p] }

// Flow holds the known facts about a connection.
type Flow struct {
	Protocol Protocol
	To       netip.AddrPort // the port is 0 for ICMP
	Own      bool           // whether the address is the host's own
	Names    []string       // names for which our DNS gave this sandbox the address; lower case, no trailing dot
	Peeked   bool           // whether the first bytes of the connection were searched for Server
	Server   string         // TLS server name or HTTP host, in the form of Names; "" if the connection named none
	Unclear  bool           // whether different servers could read different names in the first bytes
	ECH      bool           // whether the connection may contain another name, which is encrypted
}

// Verdict is the decision about a flow.
type Verdict uint8

// Verdicts. Peek is returned only while Flow.Peeked is false.
const (
	Refuse Verdict = iota
	Pass
	Peek // read the connection's first bytes, and decide again
)

// String returns the verdict's name in flow logs.
func (v Verdict) String() string { return [...]string{"refuse", "pass", "peek"}[v] }

// Reason is the reason of a verdict: one word for flow logs and counters.
type Reason string

// Reasons of refusals. The second group contains the names of closed ranges.
const (
	ModeNone    Reason = "mode-none"    // the policy permits nothing
	Denied      Reason = "deny-rule"    // a rule of Deny matches
	NoRule      Reason = "no-rule"      // the mode is allow, and no rule of Allow matches
	ForeignDNS  Reason = "foreign-dns"  // DNS at an address other than the gateway (port 53 or 853)
	NoName      Reason = "no-name"      // only a rule for a name matches, but the connection names no server
	OtherName   Reason = "other-name"   // the connection names a server that is not allowed
	NameAddress Reason = "name-address" // DNS did not give the address for the server that the connection names
	IPv6        Reason = "ipv6"         // sandboxes cannot connect by IPv6
	PrivateName Reason = "private-name" // the mode is public, and the name belongs to the host's network
	Unclear     Reason = "unclear-name" // a rule denies a name, and the connection may be for this name
	ECH         Reason = "ech"          // a rule for a name decides, and there may be an encrypted name
	QUIC        Reason = "quic"         // a rule for a name decides, but UDP at port 443 shows no name

	Host       Reason = netproto.Host
	SandboxNet Reason = netproto.SandboxNet
	Loopback   Reason = netproto.Loopback
	LinkLocal  Reason = netproto.LinkLocal
	Metadata   Reason = netproto.Metadata
	Private    Reason = netproto.Private
	CarrierNAT Reason = netproto.CarrierNAT
	Multicast  Reason = netproto.Multicast
	Broadcast  Reason = netproto.Broadcast
	Reserved   Reason = netproto.Reserved
)

// Reasons of flows that pass.
const (
	ByRule Reason = "allow-rule" // a rule of Allow for an address matches
	ByName Reason = "allow-name" // a rule of Allow for a name matches
	ByMode Reason = "mode"       // the mode permits the flow
)

// Decide decides about a flow, in this order:
//
//  1. Unreachable destinations are refused: IPv6, and the network inside the VM.
//  2. Mode none refuses all flows. Rules of Deny refuse flows by address or by name.
//  3. A rule of Allow for addresses permits flows to them. But it opens a closed range only if all
//     addresses of the rule are within this range. So the rule 0.0.0.0/0 opens the internet, but not
//     this host.
//  4. Remaining closed ranges, and DNS that bypasses the gateway, are refused.
//  5. Modes public and open permit all other flows. Mode allow requires a rule for a name.
//
// If the verdict on TCP at port 80 or 443 depends on a name, the verdict is Peek until the
// connection has named its server. A connection that may contain another, encrypted name is
// refused, except with AllowECH. UDP at port 443, which is QUIC, is refused if a name would decide
// about it. Clients then use TCP.
func Decide(p *netproto.Policy, f *Flow) (Verdict, Reason) {
	addr := f.To.Addr().Unmap()
	if !addr.Is4() {
		return Refuse, IPv6
	}
	ranged := netproto.ClosedRange(addr, f.Own)
	switch {
	case ranged.Name == netproto.SandboxNet:
		return Refuse, SandboxNet
	case p.Mode == netproto.ModeNone:
		return Refuse, ModeNone
	}
	if denyRule(p, f, addr) != nil {
		return Refuse, Denied
	}
	verdict, reason := allow(p, f, addr, ranged)
	if verdict == Pass && hasNameRule(p.Deny, f) {
		switch {
		case isQUIC(f):
			return Refuse, QUIC
		case !peekable(f):
		case !f.Peeked:
			return Peek, reason
		case f.Unclear:
			return Refuse, Unclear
		case f.ECH && !p.AllowECH:
			return Refuse, ECH
		}
	}
	return verdict, reason
}

// allow decides about a flow that is not denied.
func allow(p *netproto.Policy, f *Flow, addr netip.Addr, ranged netproto.Closed) (Verdict, Reason) {
	dns := isDNS(f)
	for i := range p.Allow {
		r := &p.Allow[i]
		if r.IsName() || !r.Prefix.Contains(addr) || !matchPort(r, f) || dns && !r.HasPorts() {
			continue
		}
		if ranged.Name == "" || netproto.Within(r.Prefix, ranged.Prefix) {
			return Pass, ByRule
		}
	}
	switch {
	case ranged.Name != "" && (ranged.Always || p.Mode != netproto.ModeOpen):
		return Refuse, Reason(ranged.Name)
	case dns:
		return Refuse, ForeignDNS
	case p.Mode == netproto.ModePublic || p.Mode == netproto.ModeOpen:
		return Pass, ByMode
	}
	return allowName(p, f)
}

// allowName decides by the rules for names. DNS must have returned the flow's address for an
// allowed name. If the connection names its server, that name must also be allowed, and DNS must
// have returned the flow's address for that name.
func allowName(p *netproto.Policy, f *Flow) (Verdict, Reason) {
	given := slices.ContainsFunc(f.Names, func(name string) bool { return matchName(p.Allow, f, name) })
	switch {
	case !given:
		return Refuse, NoRule
	case isQUIC(f):
		return Refuse, QUIC
	case !peekable(f):
		return Pass, ByName
	case !f.Peeked:
		return Peek, ByName
	case f.Server == "":
		return Refuse, NoName
	case !matchName(p.Allow, f, f.Server):
		return Refuse, OtherName
	case !slices.Contains(f.Names, f.Server):
		return Refuse, NameAddress
	case f.ECH && !p.AllowECH:
		return Refuse, ECH
	}
	return Pass, ByName
}

// denyRule returns the first rule of Deny that matches the address, one of the address's names, or
// the peeked name. If no rule matches, it returns nil.
func denyRule(p *netproto.Policy, f *Flow, addr netip.Addr) *netproto.Rule {
	for i := range p.Deny {
		r := &p.Deny[i]
		if !matchDenyPort(r, f) {
			continue
		}
		if r.IsName() {
			if slices.ContainsFunc(f.Names, func(n string) bool { return Match(r, n) }) || f.Peeked && Match(r, f.Server) {
				return r
			}
		} else if r.Prefix.Contains(addr) {
			return r
		}
	}
	return nil
}

// Names reports whether the policy permits DNS to answer for a name. If not, it returns the reason.
func Names(p *netproto.Policy, name string) (bool, Reason) {
	if p.Mode == netproto.ModeNone {
		return false, ModeNone
	}
	for i := range p.Deny {
		if r := &p.Deny[i]; r.IsName() && !r.HasPorts() && Match(r, name) {
			return false, Denied
		}
	}
	for i := range p.Allow {
		if r := &p.Allow[i]; r.IsName() && Match(r, name) {
			return true, ByName
		}
	}
	switch {
	case p.Mode == netproto.ModeAllow:
		return false, NoRule
	case p.Mode == netproto.ModePublic && netproto.PrivateName(name):
		return false, PrivateName
	}
	return true, ByMode
}

// Match reports whether a name matches the name of a rule. It ignores the port.
func Match(r *netproto.Rule, name string) bool {
	if r.Below {
		dot := len(name) - len(r.Name) - 1
		return dot >= 0 && name[dot] == '.' && name[dot+1:] == r.Name
	}
	return name == r.Name
}

func matchName(rules []netproto.Rule, f *Flow, name string) bool {
	for i := range rules {
		if r := &rules[i]; r.IsName() && Match(r, name) && matchPort(r, f) {
			return true
		}
	}
	return false
}

func hasNameRule(rules []netproto.Rule, f *Flow) bool {
	return slices.ContainsFunc(rules, func(r netproto.Rule) bool { return r.IsName() && matchDenyPort(&r, f) })
}

// matchPort reports whether an allow rule matches the protocol and the port of a flow. A rule for a
// name applies to TCP unless its text begins with "udp/". If a rule for a name has no port, it
// applies to the ports at which clients name their server.
func matchPort(r *netproto.Rule, f *Flow) bool {
	switch {
	case r.IsName() && !r.HasPorts():
		return peekable(f)
	case r.IsName() && r.Protocol == netproto.AnyProtocol && f.Protocol != TCP:
		return false
	}
	return matchDenyPort(r, f)
}

// matchDenyPort is like matchPort, for deny rules. A rule without a port applies to all ports, and
// a rule without a protocol applies to all protocols, even if the rule is for a name. So a rule for
// a name also denies SSH and QUIC to the server with this name.
func matchDenyPort(r *netproto.Rule, f *Flow) bool {
	switch {
	case r.Protocol == netproto.TCP && f.Protocol != TCP, r.Protocol == netproto.UDP && f.Protocol != UDP:
		return false
	case !r.HasPorts():
		return true
	}
	return f.Protocol != ICMP && r.First <= f.To.Port() && f.To.Port() <= r.Last
}

// peekable reports whether the first bytes at the flow's port usually contain the server's name.
func peekable(f *Flow) bool {
	return f.Protocol == TCP && (f.To.Port() == 80 || f.To.Port() == 443)
}

// isQUIC reports whether the destination of a flow is the port of HTTP/3 (RFC 9114 §3.1). If a rule
// for a name would decide about such a flow, the flow is refused. The flow is not peeked: its first
// packet could be decrypted (RFC 9001 §5.2), but the server's name may be spread over several
// packets in any order.
func isQUIC(f *Flow) bool { return f.Protocol == UDP && f.To.Port() == 443 }

// isDNS reports whether a flow is DNS that does not use our resolver: plain (RFC 1035), over TLS
// (RFC 7858) or over QUIC (RFC 9250).
func isDNS(f *Flow) bool {
	return f.Protocol != ICMP && (f.To.Port() == 53 || f.To.Port() == 853)
}
