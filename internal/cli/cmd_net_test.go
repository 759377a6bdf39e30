package cli

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

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

// The value of a secret comes from a variable or a file. Errors do not contain it.
func TestParseSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("from-a-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FORKD_TEST_SECRET", "from-a-variable")
	for text, want := range map[string]string{
		"api.example.com:Authorization=env:FORKD_TEST_SECRET": "from-a-variable",
		"api.example.com:Authorization=file:" + file:          "from-a-file",
		"api.example.com:Authorization":                       "",
	} {
		s, err := parseSecret(text)
		if err != nil || s.Host != "api.example.com" || s.Header != "Authorization" || s.Value != want {
			t.Errorf("%s: %+v, %v", text, s, err)
		}
	}
	for _, text := range []string{"a.b:X=hunter2", "a.b=hunter2", "hunter2", ":X=hunter2",
		"a.b:X=env:FORKD_TEST_NO_SECRET",
		"a.b:X=file:/nonexistent"} {
		_, err := parseSecret(text)
		if err == nil || strings.Contains(text, "=hunter2") && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestRefusalText(t *testing.T) {
	for want, r := range map[string]client.NetworkRefusal{
		"203.0.113.80:443 of pypi.org refused (reserved range) 6 times: allow it with --net public --allow 203.0.113.80": {Protocol: "tcp",
			Address: "203.0.113.80:443", Name: "pypi.org", Why: "reserved range", Count: 6,
			Fix: "allow it with --net public --allow 203.0.113.80"},
		"the name a.b refused (no rule allows it)": {Protocol: "dns", Name: "a.b", Why: "no rule allows it", Count: 1},
		"udp 1.1.1.1:443 refused (quic)":           {Protocol: "udp", Address: "1.1.1.1:443", Why: "quic", Count: 1},
	} {
		if got := refusalText(r); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
