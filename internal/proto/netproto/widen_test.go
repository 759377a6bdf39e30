package netproto

import (
	"net/netip"
	"strings"
	"testing"
)

func TestPolicyWidens(t *testing.T) {
	own := func(a netip.Addr) bool {
		return a == netip.MustParseAddr("10.0.0.7") || a == netip.MustParseAddr("9.9.9.9")
	}
	// A policy is written as its mode and its rules. A rule in Deny begins with "!". "+ech" sets
	// AllowECH.
	parse := func(text string) *Policy {
		words := strings.Fields(text)
		var allow, deny []string
		ech := false
		for _, w := range words[1:] {
			if w == "+ech" {
				ech = true
			} else if rule, ok := strings.CutPrefix(w, "!"); ok {
				deny = append(deny, rule)
			} else {
				allow = append(allow, w)
			}
		}
		p, err := ParsePolicy(words[0], allow, deny)
		if err != nil {
			t.Fatal(err)
		}
		p.AllowECH = ech
		return &p
	}
	for _, c := range []struct{ present, asked, field string }{
		// Policies that open a closed range.
		{"public", "open", "mode"},
		{"public", "public 127.0.0.1", "allow[0]"},
		{"public", "allow pypi.org 169.254.169.254:80", "allow[1]"},
		{"public", "allow 169.254.0.0/16", "allow[0]"},
		{"public", "public 10.0.0.0/8", "allow[0]"},
		{"public", "public tcp/192.168.1.0/24:443", "allow[0]"},
		{"public", "public 100.64.0.1", "allow[0]"},
		{"none", "public 0.0.0.0", "allow[0]"},
		{"public", "public 9.9.9.9", "allow[0]"}, // this is an address of the host
		{"public", "public db.internal", "allow[0]"},
		{"public", "allow *.internal", "allow[0]"},
		{"public", "allow *.arpa", "allow[0]"},
		{"public", "allow registry", "allow[0]"},
		// Policies that open only the internet.
		{"none", "public", ""},
		{"none", "allow pypi.org *.com 8.8.8.8 1.2.3.0/24", ""},
		{"public", "allow 0.0.0.0/0 8.0.0.0/5", ""}, // closed ranges inside these prefixes stay closed
		{"public", "allow 9.9.9.0/24", ""},
		{"public", "allow 192.0.2.1", ""}, // the sandbox's own network, which no rule opens
		{"public", "public !10.0.0.0/8", ""},
		// Policies that open no more than the present policy.
		{"allow 10.0.0.0/8", "allow 10.0.0.0/8", ""},
		{"allow 10.0.0.0/8", "public 10.1.2.3:443 pypi.org", ""},
		{"allow 10.0.0.0/8", "none", ""},
		{"open", "open !10.0.0.0/8", ""},
		{"open", "allow 10.1.2.3 db.internal", ""},
		{"allow *.internal", "public db.internal:5432", ""},
		{"allow 169.254.0.0/16", "allow 169.254.3.0/24", ""},
		{"allow 9.9.9.9", "public 9.9.9.9:53", "allow[0]"},
		{"allow 9.9.9.9:1-100", "public 9.9.9.9:53", ""},
		// Policies that open more than the present policy.
		{"allow 10.1.0.0/16", "allow 10.0.0.0/8", "allow[0]"},
		{"allow 10.1.2.3:443", "allow 10.1.2.3", "allow[0]"},
		{"allow 10.1.2.3:443", "allow 10.1.2.3:442-443", "allow[0]"},
		{"allow tcp/10.1.2.3", "allow 10.1.2.3", "allow[0]"},
		{"allow 10.0.0.0/8", "allow 10.0.0.7", "allow[0]"},    // an address of the host
		{"allow 10.0.0.0/8", "allow 10.1.2.3:53", "allow[0]"}, // a rule without ports does not open DNS ports
		{"allow 0.0.0.0/0", "allow 10.1.2.3", "allow[0]"},     // 0.0.0.0/0 does not open private networks
		// 169.254.0.0/16 does not open the metadata address.
		{"allow 169.254.0.0/16", "allow 169.254.169.254", "allow[0]"},
		{"open", "open 169.254.169.254", "allow[0]"},
		{"open", "open 10.0.0.7", "allow[0]"},
		{"open", "allow 10.1.2.3:53", "allow[0]"},
		{"allow db.internal", "allow *.internal", "allow[0]"},
		// Policies that lack a denial inside a range that stays open.
		{"open !10.0.0.0/8", "open", "deny"},
		{"open !10.0.0.0/8", "open !10.0.0.0/9", "deny"},
		{"open !10.0.0.0/8", "allow 10.1.2.3", "deny"},
		{"open !10.0.0.0/8", "open !10.0.0.0/7", ""},
		{"open !10.0.0.0/8", "allow 192.168.1.1", ""},
		{"open !10.0.0.0/8", "public", ""},
		{"allow 10.0.0.0/8 !secret.corp", "allow 10.0.0.0/8", "deny"},
		{"allow 10.0.0.0/8 !secret.corp", "allow 10.0.0.0/8 !*.corp", ""},
		{"allow 10.0.0.0/8 !10.0.0.1:22", "allow 10.0.0.0/8 !tcp/10.0.0.1:22", "deny"},
		// Encrypted server names bypass a rule that denies a name.
		{"open !secret.corp", "open !secret.corp +ech", "allow_ech"},
		{"allow 10.0.0.0/8 !secret.corp", "public 10.1.2.3 !secret.corp +ech", "allow_ech"},
		{"allow db.internal !secret.corp", "allow db.internal !secret.corp +ech", "allow_ech"},
		{"open !secret.corp +ech", "open !secret.corp +ech", ""},
		{"open !10.0.0.0/8", "open !10.0.0.0/8 +ech", ""},
		{"open !secret.corp", "public !secret.corp +ech", ""}, // this policy opens no range in which the denied name could be
	} {
		err := parse(c.asked).Widens(parse(c.present), own)
		switch {
		case err == nil && c.field != "":
			t.Errorf("%q after %q is allowed: want the field %s refused", c.asked, c.present, c.field)
		case err != nil && err.Field != c.field:
			t.Errorf("%q after %q: %v, want the field %q", c.asked, c.present, err, c.field)
		}
	}
}
