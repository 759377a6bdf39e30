package netproto

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Widens compares p with the present policy. It returns a *FieldError if p opens a closed range, or
// names of the host's network, that the present policy does not open. It calls own(address) to
// learn whether the host has an address.
func (p *Policy) Widens(present *Policy, own func(netip.Addr) bool) *FieldError {
	var kept []netip.Prefix // closed ranges that both p and present open
	if p.Mode == ModeOpen {
		if present.Mode != ModeOpen {
			return &FieldError{"mode", "open reaches private networks"}
		}
		for _, c := range closedRanges {
			if !c.Always {
				kept = append(kept, c.Prefix)
			}
		}
	}
	names := false
	for i := range p.Allow {
		r := &p.Allow[i]
		field := fmt.Sprintf("allow[%d]", i)
		if r.IsName() {
			if !r.namesPrivate() {
				continue
			}
			if !present.answers(r) {
				return &FieldError{field, fmt.Sprintf("%s is of the host's network", r)}
			}
			names = true
			continue
		}
		closed := closedAround(r.Prefix, own)
		if len(closed) == 0 {
			continue
		}
		if !present.opens(r, closed) {
			return &FieldError{field, fmt.Sprintf("%s opens a closed range (%s)", r, closed[0].Name)}
		}
		kept = append(kept, r.Prefix)
	}
	if len(kept) == 0 && !names {
		return nil
	}
	return p.deniesLess(present, kept)
}

// deniesLess returns a *FieldError if the present policy denies a destination that p does not deny.
// It considers names, and addresses in the kept closed ranges. A rule for a name cannot deny
// connections whose server name is encrypted. So p also denies less if p permits such connections
// and the present policy does not permit them.
func (p *Policy) deniesLess(present *Policy, kept []netip.Prefix) *FieldError {
	for i := range present.Deny {
		d := &present.Deny[i]
		if !d.IsName() && !slices.ContainsFunc(kept, d.Prefix.Overlaps) {
			continue
		}
		if !slices.ContainsFunc(p.Deny, func(r Rule) bool { return r.covers(d) }) {
			return &FieldError{"deny", fmt.Sprintf("without %s, more of what is closed would be open", d)}
		}
		if d.IsName() && p.AllowECH && !present.AllowECH {
			return &FieldError{"allow_ech", fmt.Sprintf("hides connections to the denied name %s", d)}
		}
	}
	return nil
}

// closedAround returns the closed ranges that contain a prefix, the narrowest first. A rule for the
// prefix opens all these ranges.
func closedAround(prefix netip.Prefix, own func(netip.Addr) bool) (closed []Closed) {
	if prefix.IsSingleIP() && own(prefix.Addr()) {
		closed = append(closed, ClosedRange(prefix.Addr(), true))
	}
	for _, c := range closedRanges {
		if c.Name != SandboxNet && Within(prefix, c.Prefix) {
			closed = append(closed, c)
		}
	}
	return closed
}

// opens reports whether p opens all destinations of r. The rule r is for an address in the given
// closed ranges.
func (p *Policy) opens(r *Rule, closed []Closed) bool {
	// A rule without ports does not open the DNS ports of closed ranges.
	dns := r.HasPorts() && (r.hasPort(53) || r.hasPort(853))
	if p.Mode == ModeOpen && !dns && !slices.ContainsFunc(closed, func(c Closed) bool { return c.Always }) {
		return true
	}
	return slices.ContainsFunc(p.Allow, func(have Rule) bool {
		return !have.IsName() && have.covers(r) && (!dns || have.HasPorts()) &&
			!slices.ContainsFunc(closed, func(c Closed) bool { return !Within(have.Prefix, c.Prefix) })
	})
}

// answers reports whether p permits answers to DNS queries for all names of r. The rule r is in
// another policy's Allow.
func (p *Policy) answers(r *Rule) bool {
	return p.Mode == ModeOpen ||
		slices.ContainsFunc(p.Allow, func(have Rule) bool { return have.IsName() && have.coversName(r) })
}

// namesPrivate reports whether a rule matches any name of the host's network; see PrivateName.
func (r *Rule) namesPrivate() bool {
	if !r.Below {
		return PrivateName(r.Name)
	}
	return slices.ContainsFunc(privateZones, func(zone string) bool {
		return zone == r.Name || strings.HasSuffix(zone, "."+r.Name) || strings.HasSuffix(r.Name, "."+zone)
	})
}

// covers reports whether r matches every destination that the other rule matches.
func (r *Rule) covers(other *Rule) bool {
	switch {
	case r.IsName() != other.IsName(), r.Protocol != AnyProtocol && r.Protocol != other.Protocol:
		return false
	case r.HasPorts() && !(other.HasPorts() && r.hasPort(other.First) && r.hasPort(other.Last)):
		return false
	case r.IsName():
		return r.coversName(other)
	}
	return Within(other.Prefix, r.Prefix)
}

func (r *Rule) coversName(other *Rule) bool {
	if r.Name == other.Name {
		return r.Below == other.Below
	}
	return r.Below && strings.HasSuffix(other.Name, "."+r.Name)
}

func (r *Rule) hasPort(port uint16) bool { return r.First <= port && port <= r.Last }
