package netproto

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/forkd/forkd/internal/proto/frame"
)

// Closed is a range of addresses that do not belong to the internet. If all addresses of an allow
// rule are in one closed range, the rule opens them. ModeOpen opens the whole range, unless Always
// is set.
type Closed struct {
	Prefix netip.Prefix
	Name   string // one of the names below; empty: ClosedRange was called for an address in no closed range
	Always bool   // whether the range is closed even in ModeOpen
}

// Names of closed ranges. They are also reasons of refusals.
const (
	Host       = "host"        // an address of the host itself
	SandboxNet = "sandbox-net" // the network inside every VM, which no rule opens
	Loopback   = "loopback"    // 127.0.0.0/8, and 0.0.0.0/8, which Linux treats as loopback
	LinkLocal  = "link-local"  // 169.254.0.0/16 without the metadata address
	Metadata   = "metadata"    // addresses from which cloud VMs get credentials
	Private    = "private"     // RFC 1918
	CarrierNAT = "carrier-nat" // RFC 6598
	Multicast  = "multicast"
	Broadcast  = "broadcast"
	Reserved   = "reserved" // not used on the internet
)

// closedRanges is searched in order, so narrower ranges come first. Most ranges are from the IANA
// registry of special-purpose IPv4 addresses (RFC 6890). The metadata addresses outside
// 169.254.0.0/16 belong to large clouds.
var closedRanges = []Closed{
	{netip.MustParsePrefix(frame.Prefix), SandboxNet, true},
	{netip.MustParsePrefix("127.0.0.0/8"), Loopback, true},
	{netip.MustParsePrefix("0.0.0.0/8"), Loopback, true},
	{netip.MustParsePrefix("169.254.169.254/32"), Metadata, true},
	{netip.MustParsePrefix("169.254.170.0/24"), Metadata, true},   // AWS ECS and EKS
	{netip.MustParsePrefix("100.100.100.200/32"), Metadata, true}, // Alibaba Cloud
	{netip.MustParsePrefix("192.0.0.192/32"), Metadata, true},     // Oracle Cloud
	{netip.MustParsePrefix("168.63.129.16/32"), Metadata, true},   // Azure
	{netip.MustParsePrefix("169.254.0.0/16"), LinkLocal, true},
	{netip.MustParsePrefix("10.0.0.0/8"), Private, false},
	{netip.MustParsePrefix("172.16.0.0/12"), Private, false},
	{netip.MustParsePrefix("192.168.0.0/16"), Private, false},
	{netip.MustParsePrefix("100.64.0.0/10"), CarrierNAT, false},
	{netip.MustParsePrefix("224.0.0.0/4"), Multicast, false},
	{netip.MustParsePrefix("255.255.255.255/32"), Broadcast, false},
	{netip.MustParsePrefix("192.0.0.0/24"), Reserved, false},
	{netip.MustParsePrefix("192.88.99.0/24"), Reserved, false},  // formerly 6to4
	{netip.MustParsePrefix("198.18.0.0/15"), Reserved, false},   // benchmarks
	{netip.MustParsePrefix("198.51.100.0/24"), Reserved, false}, // TEST-NET-2
	{netip.MustParsePrefix("203.0.113.0/24"), Reserved, false},  // TEST-NET-3
	{netip.MustParsePrefix("240.0.0.0/4"), Reserved, false},
}

// ClosedRange returns the closed range that contains an IPv4 address. The caller sets own to true
// if the host has this address. The range of an address of the host is Host, unless the address is
// in a range that is always closed, such as loopback.
func ClosedRange(addr netip.Addr, own bool) Closed {
	i := slices.IndexFunc(closedRanges, func(c Closed) bool { return c.Prefix.Contains(addr) })
	switch {
	case i >= 0 && (!own || closedRanges[i].Always):
		return closedRanges[i]
	case own:
		return Closed{netip.PrefixFrom(addr, 32), Host, true}
	}
	return Closed{}
}

// Within reports whether the prefix inner is completely inside the prefix outer.
func Within(inner, outer netip.Prefix) bool {
	return inner.Bits() >= outer.Bits() && outer.Contains(inner.Addr())
}

// privateZones are the DNS zones that only the host's network should answer. They are the zones of
// local networks (RFC 6762, RFC 8375, and "internal", which ICANN has reserved), the zone of the
// host itself (RFC 6761), and the zones of reverse lookups. Answers to reverse lookups reveal names
// of the network.
var privateZones = []string{"local", "internal", "home.arpa", "localhost", "in-addr.arpa", "ip6.arpa"}

// PrivateName reports whether a name belongs to the host's network rather than to the internet.
// This includes names without a dot, which are looked up in the host's own domain or in its
// /etc/hosts.
func PrivateName(name string) bool {
	return !strings.Contains(name, ".") ||
		slices.ContainsFunc(privateZones, func(zone string) bool { return name == zone || strings.HasSuffix(name, "."+zone) })
}
