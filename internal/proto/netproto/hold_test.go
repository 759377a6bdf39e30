package netproto

import (
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/codec"
)

func TestParseHold(t *testing.T) {
	h, err := ParseHold([]string{"API.example.com", "*.example.net"}, "")
	if err != nil || h.Answer != AnswerRefuse || !h.On() ||
		!slices.Equal(Texts(h.Hosts), []string{"api.example.com", "*.example.net"}) {
		t.Errorf("%+v, %v", h, err)
	}
	for field, c := range map[string]struct {
		hosts  []string
		answer string
	}{
		"answer":   {[]string{"a.b"}, "allow"},
		"hosts":    {nil, "refuse"},
		"hosts[1]": {[]string{"a.b", "10.1.2.3"}, "refuse"},
		"hosts[0]": {[]string{"a.b:443"}, "refuse"},
	} {
		if _, err := ParseHold(c.hosts, c.answer); err == nil || !strings.HasPrefix(err.Error(), field+": ") {
			t.Errorf("%v: %v, want a complaint about %s", c, err, field)
		}
	}
	if _, err := ParseHold(slices.Repeat([]string{"a.b"}, MaxHeldHosts+1), "wait"); err == nil {
		t.Error("too many hosts")
	}
	if _, err := ParseHold([]string{"tcp/a.b"}, "wait"); err == nil {
		t.Error("a protocol")
	}
}

// An invalid hold is an error, and does not mean that there is no hold.
func TestAnInvalidHoldIsRefused(t *testing.T) {
	for _, h := range []Hold{{Answer: AnswerRecord}, {Hosts: []Rule{{Name: "a.b"}}},
		{Hosts: []Rule{{Name: "a.b"}}, Answer: 9}, {Hosts: []Rule{{Name: "a.b", First: 1, Last: 2}}, Answer: AnswerWait}} {
		var w codec.Writer
		(&Attach{ID: "sb-1", Policy: Public(), Hold: h}).Append(&w)
		var m Attach
		if err := m.Parse(codec.NewReader(w.Bytes())); err == nil {
			t.Errorf("%+v became %+v", h, m.Hold)
		}
	}
}

// The longest list of effects fits into a message.
func TestTheLongestListOfEffectsHasRoom(t *testing.T) {
	m := Effects{List: make([]Effect, MaxEffects)}
	m.List[0].Body = make([]byte, MaxEffectBytes)
	var w codec.Writer
	m.Append(&w)
	if n := len(w.Bytes()); n > 1<<19 {
		t.Errorf("%d bytes", n)
	}
}
