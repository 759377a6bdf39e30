package agentproto

import (
	"bytes"
	"errors"
	"maps"
	"strings"
	"testing"
)

func TestForkedRoundTrip(t *testing.T) {
	for _, want := range []Forked{
		{Entropy: []byte("e"), RealtimeNanos: -1, Hostname: "h", Env: map[string]string{"A": "1", "B": ""}},
		{},
	} {
		p, err := want.Append([]byte("before"))
		if err != nil {
			t.Fatal(err)
		}
		p = p[len("before"):]
		n, err := Length(p, MaxForked)
		if err != nil || n != len(p)-LengthSize {
			t.Fatalf("length %d of %d bytes, %v", n, len(p), err)
		}
		got, err := Parse(p[LengthSize:])
		if err != nil || !same(got, want) {
			t.Errorf("%+v became %+v, %v", want, got, err)
		}
		for cut := range n {
			if _, err := Parse(p[LengthSize : LengthSize+cut]); err == nil {
				t.Errorf("the first %d of %d bytes pass", cut, n)
			}
		}
	}
}

func TestPrepareRoundTrip(t *testing.T) {
	p := AppendPrepare(nil)
	n, err := Length(p, MaxForked)
	if err != nil || n != len(p)-LengthSize {
		t.Fatalf("length %d of %d bytes, %v", n, len(p), err)
	}
	if got, err := Parse(p[LengthSize:]); err != nil || !got.Prepare {
		t.Errorf("%+v, %v", got, err)
	}
	for _, body := range []string{"", "\x03", string(p[LengthSize:]) + "x"} {
		if got, err := Parse([]byte(body)); err == nil {
			t.Errorf("%q passes as %+v", body, got)
		}
	}
}

func same(got Received, want Forked) bool {
	return !got.Prepare && bytes.Equal(got.Entropy, want.Entropy) && got.RealtimeNanos == want.RealtimeNanos &&
		string(got.Hostname) == want.Hostname && maps.Equal(got.Env, want.Env)
}

func TestForkedIsBounded(t *testing.T) {
	f := Forked{Env: map[string]string{"A": strings.Repeat("x", MaxForked)}}
	if _, err := f.Append(nil); err == nil || !strings.Contains(err.Error(), "environment") {
		t.Errorf("append: %v", err)
	}
	if _, err := Length([]byte{1, 0, 16, 0}, MaxForked); err == nil {
		t.Error("a length beyond the bound passes")
	}
	if _, err := Length([]byte{1, 0, 0}, MaxForked); err == nil {
		t.Error("half a length passes")
	}
}

func TestAnswers(t *testing.T) {
	if got := string(AppendAnswer(nil, nil)); got != "\x00\x00\x00\x00" {
		t.Errorf("success is %q", got)
	}
	if got := string(AppendAnswer(nil, errors.New("no"))); got != "\x02\x00\x00\x00no" {
		t.Errorf("an error is %q", got)
	}
	for _, text := range []string{"", strings.Repeat("x", 2*MaxAnswer)} {
		p := AppendAnswer(nil, errors.New(text))
		if n, err := Length(p, MaxAnswer); err != nil || n == 0 || n != len(p)-LengthSize {
			t.Errorf("error of %d bytes: %d of %d, %v", len(text), n, len(p), err)
		}
	}
}

// Parse allocates no memory. If it did, the agent would write to pages that the children of a fork
// share, and each child would need private copies of those pages.
func TestParseAllocatesNothing(t *testing.T) {
	p, err := (&Forked{Entropy: make([]byte, 32), RealtimeNanos: 1, Hostname: "sb-abcdef"}).Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if _, err := Parse(p[LengthSize:]); err != nil {
			t.Fail()
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzParse(f *testing.F) {
	p, err := (&Forked{Entropy: []byte("e"), Hostname: "h", Env: map[string]string{"A": "1"}}).Append(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p[LengthSize:])
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := Parse(body)
		if err != nil || got.Prepare {
			return
		}
		again := Forked{Entropy: got.Entropy, RealtimeNanos: got.RealtimeNanos, Hostname: string(got.Hostname), Env: got.Env}
		p, err := again.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if second, err := Parse(p[LengthSize:]); err != nil || !same(second, again) {
			t.Errorf("%+v became %+v, %v", got, second, err)
		}
	})
}
