package cli

import (
	"strings"
	"testing"
)

func TestE2BEnv(t *testing.T) {
	for _, c := range []struct{ address, token, domain, want string }{
		{"http://127.0.0.1:1/", "", "", "export E2B_API_URL='http://127.0.0.1:1'\nexport E2B_SANDBOX_URL='http://127.0.0.1:1'\nexport E2B_API_KEY='e2b_00'\n"},
		{"http://h:1", "0123456789abcdef", "", "'http://h:1'\nexport E2B_API_KEY='e2b_0123456789abcdef'\n"},
		{"http://h:1", "e2b_00ff", "", "export E2B_API_KEY='e2b_00ff'\n"},
		{"http://h:1", "it's", "", "export E2B_API_KEY='it'\\''s'\nexport E2B_VALIDATE_API_KEY=false\n"},
		{"unix:///run/x", "00", "s.example.com:8443", "export E2B_DOMAIN='s.example.com:8443'\nexport E2B_API_KEY='e2b_00'\n"},
	} {
		var out strings.Builder
		if err := printE2BEnv(&out, c.address, c.token, c.domain); err != nil || !strings.HasSuffix(out.String(), c.want) {
			t.Errorf("%+v: %q, %v", c, out.String(), err)
		}
	}
	if err := printE2BEnv(&strings.Builder{}, "unix:///run/x", "", ""); err == nil {
		t.Error("a unix socket is printed")
	}
}
