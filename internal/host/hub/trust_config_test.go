package hub

import (
	"fmt"
	"testing"
)

// TestSpellingsOfRegistries checks that a rule applies to every spelling of its registry's name.
func TestSpellingsOfRegistries(t *testing.T) {
	for rule, c := range map[string]struct{ same, others []string }{
		"ghcr.io": {[]string{"ghcr.io", "GHCR.io", "ghcr.io:443", "ghcr.io.", "ghcr.io.:443", "ghcr.io:0443", "ghcr.io:",
			"\uff47hcr.io"}, []string{"ghcr.io:444", "ghcr.io.example", "xghcr.io"}},
		"GHCR.IO.:443": {[]string{"ghcr.io", "ghcr.io:443"}, []string{"ghcr.io:80"}},
		"docker.io": {[]string{"docker.io", "index.docker.io", "registry-1.docker.io", "registry-1.docker.io.:443",
			"registry.hub.docker.com", "Docker.io:443"}, []string{"auth.docker.io"}},
		"registry-1.docker.io": {[]string{"docker.io", "index.docker.io"}, nil},
		"[2001:db8::1]": {[]string{"[2001:DB8:0::1]", "[2001:db8::1]:443"},
			[]string{"[2001:db8::1]:5000", "[2001:db8::2]"}},
		"host.example:5000": {[]string{"HOST.example.:5000", "host.example:05000"}, []string{"host.example"}},
		"10.0.0.1":          {[]string{"10.0.0.1"}, []string{"10.0.0.1:443"}}, // without TLS, the default port is 80
		"localhost:5000":    {[]string{"LOCALHOST:5000"}, []string{"localhost:443"}},
		ArchiveSource:       {nil, []string{"archive:443", "archive.", "archive.:443", "archive:"}},
	} {
		trust, err := ParseTrust("", []string{"warn", rule + "=off"})
		if err != nil {
			t.Errorf("%s: %v", rule, err)
			continue
		}
		want := map[string]Policy{}
		for _, host := range c.same {
			want[host] = Off
		}
		for _, host := range c.others {
			want[host] = Warn
		}
		for host, policy := range want {
			if got := trust.policy(remoteOf(t, host+"/owner/py:1").source()); got != policy {
				t.Errorf("%s, and the rule is for %s: %s, want %s", host, rule, got, policy)
			}
		}
	}
}

func TestParseTrust(t *testing.T) {
	trust, err := ParseTrust("", []string{"warn", "ghcr.io=require", "GHCR.io/owner=off", "archive=off",
		"docker.io/a/b=off"})
	if err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]Policy{"ghcr.io/x": Require, "ghcr.io/owner": Off, "ghcr.io/owner/py": Off,
		"ghcr.io/owners/py": Require, "localhost:5000/py": Warn, ArchiveSource: Off, "index.docker.io/a/b": Off,
		"index.docker.io/a/c": Warn} {
		if got := trust.policy(source); got != want {
			t.Errorf("%s: %s, want %s", source, got, want)
		}
	}
	if got := new(Trust).policy("ghcr.io/x"); got != Require {
		t.Errorf("the default is %s", got)
	}
	for _, rules := range [][]string{{"never"}, {""}, {"ghcr.io="}, {"=off"}, {"ghcr.io/../x=off"}, {"a b=off"},
		{"ghcr.io=off", "ghcr.io=warn"}, {"ghcr.io=off", "Ghcr.IO=warn"},
		{"docker.io=off", "registry-1.docker.io=warn"}} {
		if trust, err := ParseTrust("", rules); err == nil {
			t.Errorf("%q: %v", rules, trust)
		}
	}
	for text, ok := range map[string]bool{"": true, "require": true, "warn": true, "off": true, "true": false,
		"Off": false} {
		if _, err := ParsePolicy(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
	if text := fmt.Sprint(&TrustError{Unsigned, "archive", "x"}); text != "archive: x" {
		t.Error(text)
	}
}
