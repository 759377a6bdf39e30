package frame

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// A message of the maximum length is received as a whole, in both directions. A full socket refuses
// messages instead of blocking.
func TestPairCarriesTheLongestMessage(t *testing.T) {
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	long := bytes.Repeat([]byte{7}, MaxMessage)
	fdA, fdB := int(a.Fd()), int(b.Fd())
	for _, way := range [][2]int{{fdA, fdB}, {fdB, fdA}} {
		if _, err := unix.Write(way[0], long); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, MaxMessage+1)
		if n, err := unix.Read(way[1], got); err != nil || !bytes.Equal(got[:n], long) {
			t.Fatalf("read %d bytes, %v", n, err)
		}
	}
	for range 1000 {
		if _, err := unix.Write(fdA, long); err != nil {
			if err != unix.EAGAIN {
				t.Fatal(err)
			}
			return
		}
	}
	t.Error("1000 messages that nobody reads fit into the socket")
}

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
