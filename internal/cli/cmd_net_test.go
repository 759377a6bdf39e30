package cli

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNetworkFinding(t *testing.T) {
	const conf = "nameserver 1.1.1.1"
	for _, c := range []struct {
		unreachable error
		conf        string
		files       uint64
		want        verdict
		text        string
	}{
		{nil, conf, 1 << 20, pass, "786432 connections"},
		{unix.EPERM, conf, 1 << 20, warn, "lets its users"},
		{unix.ENETUNREACH, conf, 1 << 20, warn, "no way"},
		{nil, "", 1 << 20, warn, "--resolver"},
		{nil, conf, 1024, warn, "LimitNOFILE"},
	} {
		if f := networkFinding("x", c.unreachable, c.conf, c.files); f.Verdict != c.want || !strings.Contains(f.Detail, c.text) {
			t.Errorf("%+v: %+v", c, f)
		}
	}
}

func TestParseResolvers(t *testing.T) {
	got, err := parseResolvers([]string{"9.9.9.9", "127.0.0.1:5353", "fd00::1", "[fd00::1]:54"})
	want := []netip.AddrPort{netip.MustParseAddrPort("9.9.9.9:53"), netip.MustParseAddrPort("127.0.0.1:5353"),
		netip.MustParseAddrPort("[fd00::1]:53"), netip.MustParseAddrPort("[fd00::1]:54")}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := parseResolvers([]string{"dns.example.com"}); err == nil || !strings.Contains(err.Error(), "9.9.9.9") {
		t.Errorf("a name: %v", err)
	}
}
