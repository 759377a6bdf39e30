package policy

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/forkd/forkd/internal/proto/netproto"
)

// whys maps reasons for refusals to explanations for users.
var whys = map[Reason]string{
	ModeNone: "the mode none", NoRule: "no rule allows it", ForeignDNS: "DNS goes through the gateway",
	NoName: "the connection names no server", OtherName: "the connection names a server that is not allowed",
	NameAddress: "DNS did not give the address for the server's name", IPv6: "there is no IPv6",
	PrivateName: "a name of the host's network", Unclear: "the request may be for a denied name",
	ECH: "encrypted server name", QUIC: "QUIC does not show the server's name",
	Host: "an address of the host", SandboxNet: "the sandbox's own network", Loopback: "loopback", LinkLocal: "link-local",
	Metadata: "metadata service", Private: "private range", CarrierNAT: "carrier NAT range", Multicast: "multicast",
	Broadcast: "broadcast", Reserved: "reserved range",
}

// Explain describes why a flow was refused. It also returns the flags of "forkd net set" that would
// permit the flow, or "" if no flags would permit it.
func Explain(p *netproto.Policy, f *Flow, reason Reason) (why, fix string) {
	why = whys[reason]
	rule := ""
	switch reason {
	case ModeNone:
		return why, "open its network with --net public, or --allow and what it needs"
	case Denied:
		if r := denyRule(p, f, f.To.Addr().Unmap()); r != nil {
			return fmt.Sprintf("deny rule %s", r), fmt.Sprintf("leave --deny %s out", r)
		}
		return "a deny rule", ""
	case ECH:
		return why, "allow it with " + withMode(p, "--allow-ech")
	case NoRule:
		rule = narrowest(f)
	case Host, Loopback, LinkLocal, Metadata, ForeignDNS, NoName:
		rule = address(f, true)
	case Private, CarrierNAT, Multicast, Broadcast, Reserved:
		rule = address(f, isDNS(f)) // a rule permits DNS only if it names the port of DNS
	case OtherName:
		if slices.Contains(f.Names, f.Server) {
			rule = f.Server
		}
	case QUIC:
		if !hasNameRule(p.Deny, f) {
			rule = "udp/" + address(f, true)
		}
	}
	if rule == "" {
		return why, ""
	}
	return why, "allow it with " + withMode(p, "--allow "+rule)
}

// ExplainName is like Explain, for a name that DNS refused.
func ExplainName(p *netproto.Policy, name string, reason Reason) (why, fix string) {
	switch reason {
	case NoRule, PrivateName:
		if _, err := netproto.ParseRule(name); err == nil { // the guest chooses the name; it may be an invalid rule
			return whys[reason], "allow it with " + withMode(p, "--allow "+name)
		}
		return whys[reason], ""
	case Denied:
		for i := range p.Deny {
			if r := &p.Deny[i]; r.IsName() && Match(r, name) {
				return fmt.Sprintf("deny rule %s", r), fmt.Sprintf("leave --deny %s out", r)
			}
		}
	}
	return Explain(p, &Flow{}, reason)
}

// withMode adds a flag for the current mode before the given flag, because --allow alone would
// change the mode to "allow".
func withMode(p *netproto.Policy, flag string) string {
	if p.Mode == netproto.ModeAllow {
		return flag
	}
	return fmt.Sprintf("--net %s %s", p.Mode, flag)
}

func address(f *Flow, withPort bool) string {
	addr := f.To.Addr().Unmap()
	if f.Protocol == ICMP || !withPort {
		return addr.String()
	}
	return netip.AddrPortFrom(addr, f.To.Port()).String()
}

// narrowest returns a rule that would permit a flow, but as few other flows as possible. It returns
// a rule for a name only if the connection itself names its server by this name. The guest chooses
// the other names of an address, and the owner of such a name can later move it to another address.
func narrowest(f *Flow) string {
	if peekable(f) && slices.Contains(f.Names, f.Server) {
		return f.Server
	}
	return address(f, true)
}
