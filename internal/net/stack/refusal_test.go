package stack

import (
	"fmt"
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

// Stats lists the latest destinations of permitted connections, each with the sums over its
// connections. The list is bounded, and its names are the names that the guest asked for.
func TestPassagesAreListed(t *testing.T) {
	var c Counters
	for n := range uint64(20) {
		for range 2 {
			address := fmt.Sprintf("192.0.2.%d:443", n)
			c.pass(netproto.Passage{Protocol: "tcp", Address: address, Name: "a.test", UpBytes: 1,
				DownBytes: n, Unix: int64(n)})
		}
	}
	c.pass(netproto.Passage{Protocol: "tcp", Address: "192.0.2.15:443", Name: "a.test", UpBytes: 5, DownBytes: 6,
		Unix: 30})
	got := c.Stats()
	if got.Connections != 41 || len(got.Passed) != netproto.MaxRecent {
		t.Fatalf("%d connections, %d destinations", got.Connections, len(got.Passed))
	}
	for i, want := range []netproto.Passage{
		{Protocol: "tcp", Address: "192.0.2.15:443", Name: "a.test", UpBytes: 7, DownBytes: 36, Count: 3, Unix: 30},
		{Protocol: "tcp", Address: "192.0.2.19:443", Name: "a.test", UpBytes: 2, DownBytes: 38, Count: 2, Unix: 19},
	} {
		if got.Passed[i] != want {
			t.Errorf("%+v, want %+v", got.Passed[i], want)
		}
	}
	var sum Counters
	sum.Add(&c)
	if s := sum.Stats(); s.Connections != 41 || len(s.Passed) != 0 {
		t.Errorf("the sum over sandboxes: %+v", s)
	}
}
