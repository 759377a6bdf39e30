package hostroute

import (
	"net"
	"net/netip"
	"testing"
)

func TestIsLocal(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1": true,
		"127.9.9.9": true,  // assigned to no interface explicitly
		"192.0.2.9": false, // an address for documentation (RFC 5737)
	} {
		if got := IsLocal(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %v, want %v", addr, got, want)
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().Is4() && !IsLocal(p.Addr()) {
			t.Errorf("%s is of an interface of the host, and not local", p.Addr())
		}
	}
}
