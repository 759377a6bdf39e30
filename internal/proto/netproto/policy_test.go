package netproto

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestParseRule(t *testing.T) {
	prefix := netip.MustParsePrefix
	for text, want := range map[string]Rule{
		"example.com":       {Name: "example.com"},
		"*.example.com":     {Name: "example.com", Below: true},
		"example.com:22":    {Name: "example.com", First: 22, Last: 22},
		"udp/a.b:443":       {Protocol: UDP, Name: "a.b", First: 443, Last: 443},
		"localhost":         {Name: "localhost"},
		"_srv.1password.io": {Name: "_srv.1password.io"},
		"10.0.0.0/8":        {Prefix: prefix("10.0.0.0/8")},
		"0.0.0.0/0":         {Prefix: prefix("0.0.0.0/0")},
		"1.2.3.4":           {Prefix: prefix("1.2.3.4/32")},
		"tcp/1.2.3.4:443":   {Protocol: TCP, Prefix: prefix("1.2.3.4/32"), First: 443, Last: 443},
		"1.2.3.0/24:80-90":  {Prefix: prefix("1.2.3.0/24"), First: 80, Last: 90},
		"udp/10.0.0.0/8":    {Protocol: UDP, Prefix: prefix("10.0.0.0/8")},
		"10.0.0.0/8:65535":  {Prefix: prefix("10.0.0.0/8"), First: 65535, Last: 65535},
	} {
		got, err := ParseRule(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%s = %+v (%s), %v", text, got, got.String(), err)
		}
	}
	if r, err := ParseRule("WWW.Example.COM."); err != nil || r.String() != "www.example.com" {
		t.Errorf("%s, %v", r.String(), err)
	}
	if r, err := ParseRule("1.2.3.4/32"); err != nil || r.String() != "1.2.3.4" {
		t.Errorf("%s, %v", r.String(), err)
	}
}

// An error quotes the rule and shows how to correct it.
func TestParseRuleSaysWhatToWrite(t *testing.T) {
	for text, fix := range map[string]string{
		"":                        "names no host",
		"*":                       "mode public",
		"*.":                      "names no host",
		"https://pypi.org/simple": "write pypi.org",
		"pypi.org/simple":         "without a path",
		"a.*.com":                 "only *.name",
		"::1":                     "no IPv6",
		"[::1]:80":                "no IPv6",
		"fd00::/8":                "no IPv6",
		"10.1.2.3/8":              "write 10.0.0.0/8 or 10.1.2.3",
		"10.0.0.0/33":             "is not a network",
		"256.1.1.1":               "not an IPv4 address",
		"1.2.3":                   "not an IPv4 address",
		"2130706433":              "not an IPv4 address",
		"127.0.0.01":              "not an IPv4 address",
		"example.com:0":           "from 1 to 65535",
		"example.com:":            "from 1 to 65535",
		"example.com:90-80":       "the lower first",
		"example.com:65536":       "from 1 to 65535",
		"udp/example.com":         "needs a port",
		"bücher.de":               "xn--",
		"a..b":                    "1 to 63",
		"-a.b":                    "hyphen",
		"a b.c":                   "no name has",
		strings.Repeat("a", 64):   "1 to 63",
		strings.Repeat("a.", 128): "at most 253",
	} {
		_, err := ParseRule(text)
		if err == nil || !strings.Contains(err.Error(), fix) || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v, want it quoted and %q", text, err, fix)
		}
	}
	if _, err := ParseRule(strings.Repeat("x", 1000)); err == nil || len(err.Error()) > 200 {
		t.Errorf("an overlong rule: %v", err)
	}
}

func TestParsePolicy(t *testing.T) {
	for _, c := range []struct {
		mode        string
		allow, deny []string
		want        Mode
		field       string // expected FieldError.Field
	}{
		{mode: "", want: ModePublic},
		{mode: "", allow: []string{"pypi.org"}, want: ModeAllow},
		{mode: "", deny: []string{"pypi.org"}, want: ModePublic},
		{mode: "public", allow: []string{"10.0.0.0/8"}, want: ModePublic},
		{mode: "none", deny: []string{"pypi.org"}, want: ModeNone},
		{mode: "open", want: ModeOpen},
		{mode: "allow", want: ModeAllow},
		{mode: "off", field: "mode"},
		{mode: "none", allow: []string{"pypi.org"}, field: "allow"},
		{mode: "allow", allow: []string{"pypi.org", "*"}, field: "allow[1]"},
		{deny: []string{"*"}, field: "deny[0]"},
		{deny: make([]string, MaxRules+1), field: "deny"},
	} {
		got, err := ParsePolicy(c.mode, c.allow, c.deny)
		if c.field != "" {
			if e, ok := errors.AsType[*FieldError](err); !ok || e.Field != c.field || e.Reason == "" {
				t.Errorf("%q %q: %v, want an error of %s", c.mode, c.allow, err, c.field)
			}
			continue
		}
		if err != nil || got.Mode != c.want || len(got.Allow) != len(c.allow) || len(got.Deny) != len(c.deny) {
			t.Errorf("%q %q %q = %+v, %v", c.mode, c.allow, c.deny, got, err)
		}
	}
}

func FuzzParseRule(f *testing.F) {
	for _, s := range []string{"tcp/*.example.com:80-90", "10.0.0.0/8", "udp/1.2.3.4:53", "a.b."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRule(text)
		if err != nil {
			return
		}
		if again, err := ParseRule(r.String()); err != nil || again != r {
			t.Errorf("%q: %+v became %+v, %v", text, r, again, err)
		}
	})
}
