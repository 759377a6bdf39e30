package netclient

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/netproto"
)

func TestParseProxy(t *testing.T) {
	for text, want := range map[string]netproto.Proxy{
		"http://10.1.2.3:3128": {Addr: netip.MustParseAddrPort("10.1.2.3:3128")},
		"http://10.1.2.3/":     {Addr: netip.MustParseAddrPort("10.1.2.3:80")},
		"http://user:p%40ss@10.1.2.3:8080": {Addr: netip.MustParseAddrPort("10.1.2.3:8080"),
			Authorization: "Basic dXNlcjpwQHNz"},
		// the name cannot be resolved, but the proxy must not be bypassed
		"http://256.256.256.256:8080": {Addr: netip.AddrPortFrom(nobody, 8080)},
	} {
		p, err := ParseProxy(text, "10.0.0.0/8")
		want.Except = "10.0.0.0/8"
		if got := p.resolve(netproto.Proxy{}); err != nil || got != want {
			t.Errorf("%s has address %v, %v", text, got.Addr, err)
		}
	}
	if got := (Proxy{}).resolve(netproto.Proxy{}); got.Addr.IsValid() {
		t.Errorf("no proxy has address %v", got.Addr)
	}
	for _, text := range []string{"", "s3cr3t", "https://s3cr3t@a", "socks5://s3cr3t@a", "http://", "http://s3cr3t@a:0",
		"http://a/s3cr3t", "http://a:%zz"} {
		if _, err := ParseProxy(text, ""); err == nil || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
