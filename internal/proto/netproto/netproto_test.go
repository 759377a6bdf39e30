package netproto

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/codec"
)

type body interface {
	codec.Message
	Parse(*codec.Reader) error
}

func messages(t testing.TB) []body {
	t.Helper()
	policy, err := ParsePolicy("allow", []string{"pypi.org", "*.pythonhosted.org:443", "tcp/10.0.0.0/8:80-90"},
		[]string{"10.1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	policy.AllowECH = true
	limits := Limits{BytesPerSecond: 1 << 40, PacketsPerSecond: 2, Connections: 3}
	return []body{
		&Hello{Version: Version},
		&Welcome{Version: Version, PID: 7},
		&Config{Resolvers: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.53:53"),
			netip.MustParseAddrPort("[fe80::1]:53")},
			Own:   []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
			Proxy: Proxy{netip.MustParseAddrPort("10.0.0.2:3128"), "Basic x", "10.0.0.0/8"}},
		&Attach{ID: "sb-1", Policy: policy, Limits: limits, Secrets: []Secret{{"api.example.com", "Authorization",
			"Bearer x"}}, Hold: Hold{Hosts: []Rule{{Name: "a.b"}, {Name: "c.d", Below: true}}, Answer: AnswerWait}},
		&Effects{Since: 1, Missed: 2, List: []Effect{{ID: 3, Unix: 4, Method: "POST", URL: "https://a.b/", Headers: []string{
			"A: b"}, Body: []byte("c"), Truncated: true, Outcome: OutcomeSent}}},
		&Trust{Certificate: []byte("certificate"), Key: "key"},
		&SetPolicy{ID: "sb-1", Policy: Public()},
		&ID{ID: "sb-1"},
		&List{IDs: []string{"sb-1", "sb-2"}},
		&Stats{Active: true, Open: 1, Connections: 2, UpBytes: 3, DownBytes: 4, DNSQueries: 5, Dropped: 6,
			Refused: []Refusals{{"private", 7}, {"metadata", 8}},
			Recent:  []Refusal{{"tcp", "10.1.2.3:80", "a.example", "private", "private range", "allow it", 2, 1764000000}},
			Passed:  []Passage{{"tcp", "192.0.2.1:443", "b.example", 10, 20, 3, 1764000001}},
			Flows:   []Flow{{"udp", "192.0.2.2:53", "c.example", 11, 21, 1764000002, 1764000003}}},
		&Error{Code: CodeUnknown, Text: "no such sandbox"},
	}
}

// Parsing a message and encoding it again gives the same bytes. A truncated message is refused.
func TestMessagesRoundTrip(t *testing.T) {
	for _, m := range messages(t) {
		var w codec.Writer
		m.Append(&w)
		got := reflect.New(reflect.TypeOf(m).Elem()).Interface().(body)
		r := codec.NewReader(w.Bytes())
		if err := got.Parse(r); err != nil || r.Done() != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%T: %+v became %+v: %v, %v", m, m, got, err, r.Done())
		}
		for n := range w.Bytes() {
			if reflect.New(reflect.TypeOf(m).Elem()).Interface().(body).Parse(codec.NewReader(w.Bytes()[:n])) == nil {
				t.Errorf("%T: accepted its first %d bytes of %d", m, n, len(w.Bytes()))
			}
		}
	}
}

// A message with the largest permitted policy and secrets is within the maximum size.
func TestTheLargestAttachHasRoom(t *testing.T) {
	long := strings.Repeat("a.", 125) + "a"
	m := Attach{ID: strings.Repeat("i", MaxID), Policy: Policy{Mode: ModeAllow}}
	for range MaxRules {
		r, err := ParseRule("tcp/*." + long + ":10000-20000")
		if err != nil {
			t.Fatal(err)
		}
		m.Policy.Allow, m.Policy.Deny = append(m.Policy.Allow, r), append(m.Policy.Deny, r)
	}
	for i := range MaxSecrets {
		m.Secrets = append(m.Secrets, Secret{long, fmt.Sprint("X-", i), Hidden(strings.Repeat("x", MaxValue))})
	}
	var w codec.Writer
	m.Append(&w)
	var got Attach
	if err := got.Parse(codec.NewReader(w.Bytes())); err != nil || !reflect.DeepEqual(got, m) {
		t.Error(err)
	}
	if n := len(w.Bytes()); n > 300<<10 {
		t.Errorf("%d bytes: a socket without a raised buffer does not take them", n)
	}
}

func TestParseRefusesWhatNoPolicyIs(t *testing.T) {
	for name, fill := range map[string]func(w *codec.Writer){
		"no id":        func(w *codec.Writer) { w.String("") },
		"long id":      func(w *codec.Writer) { w.String(strings.Repeat("x", MaxID+1)) },
		"no mode":      func(w *codec.Writer) { w.String("x"); w.U8(0); w.U32(0); w.U32(0); w.Raw(make([]byte, 16)) },
		"unknown mode": func(w *codec.Writer) { w.String("x"); w.U8(9); w.U32(0); w.U32(0); w.Raw(make([]byte, 16)) },
		"bad rule": func(w *codec.Writer) {
			w.String("x")
			w.U8(1)
			w.U32(1)
			w.String("https://a/")
			w.U32(0)
			w.Raw(make([]byte, 16))
		},
		"many rules": func(w *codec.Writer) { w.String("x"); w.U8(1); w.U32(MaxRules + 1); w.Raw(make([]byte, 8*MaxRules)) },
	} {
		var w codec.Writer
		fill(&w)
		if err := new(Attach).Parse(codec.NewReader(w.Bytes())); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzAttach(f *testing.F) {
	for _, m := range messages(f) {
		var w codec.Writer
		m.Append(&w)
		f.Add(w.Bytes())
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		var m Attach
		r := codec.NewReader(p)
		if m.Parse(r) != nil || r.Done() != nil {
			return
		}
		var w codec.Writer
		m.Append(&w)
		var again Attach
		if err := again.Parse(codec.NewReader(w.Bytes())); err != nil || !reflect.DeepEqual(m, again) {
			t.Errorf("%+v became %+v, %v", m, again, err)
		}
	})
}
