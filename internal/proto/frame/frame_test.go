package frame

import (
	"net"
	"net/netip"
	"testing"
)

func TestAddresses(t *testing.T) {
	prefix := netip.MustParsePrefix(Prefix)
	if prefix.Bits() != PrefixBits {
		t.Errorf("%s has %d bits", Prefix, prefix.Bits())
	}
	for _, a := range []string{Guest, Gateway} {
		if !prefix.Contains(netip.MustParseAddr(a)) {
			t.Errorf("%s is not in %s", a, Prefix)
		}
	}
	if got := net.HardwareAddr(GuestMAC[:]).String(); got != "02:66:6b:64:00:02" {
		t.Errorf("the guest is %s", got)
	}
	if got := net.HardwareAddr(GatewayMAC[:]).String(); got != "02:66:6b:64:00:01" {
		t.Errorf("the gateway is %s", got)
	}
}
