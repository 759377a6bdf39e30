package stack

import (
	"testing"

	"github.com/forkd/forkd/internal/net/guesttest"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// Stats lists the latest refusals, each with the reason and the flags that would permit the flow.
// The list is bounded.
func TestRefusalsAreNamed(t *testing.T) {
	w := newWorld(t)
	h := NewHost(10000)
	serveDNS(t, w, h, "pypi.test=203.0.113.80")
	r := addRig(t, w, h, "public", netproto.Limits{})
	r.lookup(t, "pypi.test", false)
	for range 2 {
		if _, err := r.dial(t, "203.0.113.80:443"); err == nil {
			t.Fatal("a closed range got through")
		}
	}
	r.mustCount(t, "reserved", 2)
	want := netproto.Refusal{Protocol: "tcp", Address: "203.0.113.80:443", Name: "pypi.test", Reason: "reserved",
		Why: "reserved range",
		Fix: "allow it with --net public --allow 203.0.113.80", Count: 2}
	check := func(want netproto.Refusal) {
		t.Helper()
		got := r.counters.Stats().Recent[0]
		if got.Unix == 0 {
			t.Error("it has no time")
		}
		got.Unix = 0
		if got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	check(want)
	r.lookup(t, "nas", false)
	r.mustCount(t, "private-name", 1)
	check(netproto.Refusal{Protocol: "dns", Name: "nas", Reason: "private-name", Why: "a name of the host's network",
		Fix: "allow it with --net public --allow nas", Count: 1})
	for port := range uint16(20) {
		r.guest.Send(guesttest.Frame(guesttest.UDP(frame.Guest, private, 1024, 1000+port, nil)))
	}
	r.mustCount(t, "private", 20)
	if n := len(r.counters.Stats().Recent); n != netproto.MaxRecent {
		t.Errorf("%d destinations are kept", n)
	}
	check(netproto.Refusal{Protocol: "udp", Address: private + ":1019", Reason: "private", Why: "private range",
		Fix: "allow it with --net public --allow " + private, Count: 1})
}
