package dns

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/forkd/forkd/internal/proto/netproto"
)

// TestPrivateNamesOfAnswers checks the answers to a guest that asks for a permitted name. The
// answers must not contain a name of the host's network that the policy refuses, either as an alias
// or in additional records.
func TestPrivateNamesOfAnswers(t *testing.T) {
	name := func(text string) dnsmessage.Name { return dnsmessage.MustNewName(text + ".") }
	a := &dnsmessage.AResource{A: [4]byte{10, 1, 2, 3}}
	cname := func(to string) dnsmessage.ResourceBody { return &dnsmessage.CNAMEResource{CNAME: name(to)} }
	dname := func(data string) dnsmessage.ResourceBody {
		return &dnsmessage.UnknownResource{Type: typeDNAME, Data: []byte(data)}
	}
	record := func(owner string, body dnsmessage.ResourceBody) dnsmessage.Resource {
		h := dnsmessage.ResourceHeader{Name: name(owner), Class: dnsmessage.ClassINET}
		return dnsmessage.Resource{Header: h, Body: body}
	}
	const asked = "www.evil.example"
	many := func(n int) (rs []dnsmessage.Resource) {
		for i := range n {
			rs = append(rs, record(fmt.Sprintf("n%d.lan.internal", i), a))
		}
		return rs
	}
	type records = []dnsmessage.Resource
	for text, c := range map[string]struct {
		answers, more records
		refused       string
		code          dnsmessage.RCode
	}{
		"an address":       {answers: records{record(asked, a)}},
		"a public alias":   {answers: records{record(asked, cname("cdn.example")), record("cdn.example", a)}},
		"an allowed alias": {answers: records{record(asked, cname("OK.lan.internal")), record("ok.lan.internal", a)}},
		"a mail server":    {answers: records{record(asked, &dnsmessage.MXResource{MX: name("mail.corp.internal")})}},
		"an alias":         {answers: records{record(asked, cname("DB.Corp.Internal"))}, refused: "db.corp.internal"},
		"an alias of an alias": {answers: records{record(asked, cname("a.example")), record("a.example", cname("nas"))},
			refused: "nas"},
		"a reverse alias": {answers: records{record(asked, cname("1.0.0.10.in-addr.arpa"))},
			refused: "1.0.0.10.in-addr.arpa"},
		"an owner":           {answers: records{record(asked, a), record("db.local", a)}, refused: "db.local"},
		"a DNAME":            {answers: records{record(asked, dname("\x04corp\x05local\x00"))}, refused: "corp.local"},
		"a public DNAME":     {answers: records{record(asked, dname("\x03cdn\x07example\x00"))}},
		"a compressed DNAME": {answers: records{record(asked, dname("\xc0\x0c"))}, code: dnsmessage.RCodeServerFailure},
		"a cut DNAME":        {answers: records{record(asked, dname("\x04cor"))}, code: dnsmessage.RCodeServerFailure},
		"an empty DNAME":     {answers: records{record(asked, dname(""))}, code: dnsmessage.RCodeServerFailure},
		"not ASCII": {answers: records{record(asked, cname("\u212A.local"))},
			code: dnsmessage.RCodeServerFailure},
		"an additional record":   {more: records{record("mail.corp.internal", a)}, refused: "mail.corp.internal"},
		"many allowed names":     {answers: many(maxPrivate)},
		"too many allowed names": {answers: many(maxPrivate + 1), code: dnsmessage.RCodeServerFailure},
	} {
		if c.refused != "" {
			c.code = dnsmessage.RCodeRefused
		}
		u := newUpstream(t)
		u.set(func() { u.answers, u.more = c.answers, c.more })
		refused := ""
		g := newGuest(t, func(name string) (bool, Reason) {
			return !netproto.PrivateName(name) || strings.HasSuffix(name, ".lan.internal"), "private-name"
		}, u)
		g.refused = func(name string, _ Reason) { refused = name }
		m := unpack(t, g.Answer(t.Context(), pack(t, asked, dnsmessage.TypeA, 1232), true))
		if m.RCode != c.code || refused != c.refused || m.RCode != dnsmessage.RCodeSuccess && len(m.Answers) > 0 {
			t.Errorf("%s: %v, refused %q; want %v, %q", text, m.RCode, refused, c.code, c.refused)
		}
		if got := g.Names(netip.AddrFrom4(a.A)); c.code != dnsmessage.RCodeSuccess && len(got) > 0 {
			t.Errorf("%s: %q are remembered", text, got)
		}
	}
}

// FuzzPrivateNames reads arbitrary answers, and names that consist of arbitrary bytes.
func FuzzPrivateNames(f *testing.F) {
	u := &upstream{zone: map[string]string{"example.com": ">db.corp.internal", "db.corp.internal": "10.1.2.3"}}
	answer, _, _ := u.answer(pack(f, "example.com", dnsmessage.TypeA, 0), false)
	f.Add(answer)
	f.Fuzz(func(t *testing.T, p []byte) {
		names, err := privateNames(p)
		if len(names) > maxPrivate || err != nil && names != nil {
			t.Errorf("%q, %v", names, err)
		}
		_, _ = plainName(p)
	})
}
