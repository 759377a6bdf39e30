package auth

import "testing"

func TestCheckHost(t *testing.T) {
	allowed := []string{"forkd.internal", "192.0.2.7"}
	for _, h := range []string{"localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:8889", "127.8.8.8:1", "[::1]",
		"[::1]:8889",
		"forkd.internal", "Forkd.Internal:443", "192.0.2.7:8889"} {
		if err := CheckHost(h, allowed); err != nil {
			t.Errorf("%v", err)
		}
	}
	for _, h := range []string{"", "example.org", "example.org:8889", "localhost.example.org", "127.0.0.1.example.org",
		"192.0.2.8",
		"10.0.0.1:80", "[::2]:80", "forkd.internal.example.org", "localhost:80:80"} {
		if CheckHost(h, allowed) == nil {
			t.Errorf("%q is accepted", h)
		}
	}
}
