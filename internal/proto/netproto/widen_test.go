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
	// The text of a policy is a mode and rules. Rules that deny have the prefix "!". "+ech" sets
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
		// Ranges that are closed for everyone.
		{"public", "open", "mode"},
		{"public", "public 127.0.0.1", "allow[0]"},
		{"public", "allow pypi.org 169.254.169.254:80", "allow[1]"},
		{"public", "allow 169.254.0.0/16", "allow[0]"},
		{"public", "public 10.0.0.0/8", "allow[0]"},
		{"public", "public tcp/192.168.1.0/24:443", "allow[0]"},
		{"public", "public 100.64.0.1", "allow[0]"},
		{"none", "public 0.0.0.0", "allow[0]"},
		{"public", "public 9.9.9.9", "allow[0]"}, // an address of the host
		{"public", "public db.internal", "allow[0]"},
		{"public", "allow *.internal", "allow[0]"},
		{"public", "allow *.arpa", "allow[0]"},
		{"public", "allow registry", "allow[0]"},
		// Ranges that are open.
		{"none", "public", ""},
		{"none", "allow pypi.org *.com 8.8.8.8 1.2.3.0/24", ""},
		{"public", "allow 0.0.0.0/0 8.0.0.0/5", ""}, // the internet; closed ranges inside stay closed
		{"public", "allow 9.9.9.0/24", ""},
		{"public", "allow 192.0.2.1", ""}, // the sandbox's own network
		{"public", "public !10.0.0.0/8", ""},
		// A range that is already open may stay open, or be restricted.
		{"allow 10.0.0.0/8", "allow 10.0.0.0/8", ""},
		{"allow 10.0.0.0/8", "public 10.1.2.3:443 pypi.org", ""},
		{"allow 10.0.0.0/8", "none", ""},
		{"open", "open !10.0.0.0/8", ""},
		{"open", "allow 10.1.2.3 db.internal", ""},
		{"allow *.internal", "public db.internal:5432", ""},
		{"allow 169.254.0.0/16", "allow 169.254.3.0/24", ""},
		{"allow 9.9.9.9", "public 9.9.9.9:53", "allow[0]"},
		{"allow 9.9.9.9:1-100", "public 9.9.9.9:53", ""},
		// Opening more is reported.
		{"allow 10.1.0.0/16", "allow 10.0.0.0/8", "allow[0]"},
		{"allow 10.1.2.3:443", "allow 10.1.2.3", "allow[0]"},
		{"allow 10.1.2.3:443", "allow 10.1.2.3:442-443", "allow[0]"},
		{"allow tcp/10.1.2.3", "allow 10.1.2.3", "allow[0]"},
		{"allow 10.0.0.0/8", "allow 10.0.0.7", "allow[0]"},            // opens an address of the host
		{"allow 10.0.0.0/8", "allow 10.1.2.3:53", "allow[0]"},         // opens DNS
		{"allow 0.0.0.0/0", "allow 10.1.2.3", "allow[0]"},             // the larger range opened no closed range
		{"allow 169.254.0.0/16", "allow 169.254.169.254", "allow[0]"}, // the larger range did not open this address
		{"open", "open 169.254.169.254", "allow[0]"},
		{"open", "open 10.0.0.7", "allow[0]"},
		{"open", "allow 10.1.2.3:53", "allow[0]"},
		{"allow db.internal", "allow *.internal", "allow[0]"},
		// Removing a denial within an open range is reported too.
		{"open !10.0.0.0/8", "open", "deny"},
		{"open !10.0.0.0/8", "open !10.0.0.0/9", "deny"},
		{"open !10.0.0.0/8", "allow 10.1.2.3", "deny"},
		{"open !10.0.0.0/8", "open !10.0.0.0/7", ""},
		{"open !10.0.0.0/8", "allow 192.168.1.1", ""},
		{"open !10.0.0.0/8", "public", ""},
		{"allow 10.0.0.0/8 !secret.corp", "allow 10.0.0.0/8", "deny"},
		{"allow 10.0.0.0/8 !secret.corp", "allow 10.0.0.0/8 !*.corp", ""},
		{"allow 10.0.0.0/8 !10.0.0.1:22", "allow 10.0.0.0/8 !tcp/10.0.0.1:22", "deny"},
		// Encrypted names bypass a rule that denies a name.
		{"open !secret.corp", "open !secret.corp +ech", "allow_ech"},
		{"allow 10.0.0.0/8 !secret.corp", "public 10.1.2.3 !secret.corp +ech", "allow_ech"},
		{"allow db.internal !secret.corp", "allow db.internal !secret.corp +ech", "allow_ech"},
		{"open !secret.corp +ech", "open !secret.corp +ech", ""},
		{"open !10.0.0.0/8", "open !10.0.0.0/8 +ech", ""},
		{"open !secret.corp", "public !secret.corp +ech", ""}, // opens nothing that was closed
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
