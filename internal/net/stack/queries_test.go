package stack

import (
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/forkd/forkd/internal/net/guesttest"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// TestAttackSlowResolver checks that the waiting queries of all sandboxes are counted together, and
// that a few sandboxes cannot take all places.
func TestAttackSlowResolver(t *testing.T) {
	w := newWorld(t)
	w.ListenUDP(t, resolver+":53") // does not answer
	h := NewHost(10)
	h.Resolver.Set([]netip.AddrPort{netip.MustParseAddrPort(resolver + ":53")})
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 1, RecursionDesired: true}, Questions: []dnsmessage.Question{
		{Name: dnsmessage.MustNewName("slow.example."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	query, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	ask := func(r *rig, n int) {
		for i := range n {
			r.guest.Send(guesttest.Frame(guesttest.UDP(frame.Guest, frame.Gateway, uint16(1024+i), 53, query)))
		}
	}
	others := int64(0)
	for ; others < maxQueries/2; others++ {
		if !h.takeQuery(maxQueries) {
			t.Fatalf("after %d queries there is no place", others)
		}
	}
	few, late := addRig(t, w, h, "public", netproto.Limits{}), addRig(t, w, h, "public", netproto.Limits{})
	ask(few, fewQueries+2)
	waitFor(t, "two are dropped", func() bool { return few.counters.Dropped.Load() == 2 })
	if n := h.queries.Load(); n != others+fewQueries {
		t.Errorf("%d queries are counted, want %d", n, others+fewQueries)
	}
	for h.takeQuery(1) {
		others++
	}
	ask(late, 1)
	waitFor(t, "it is dropped", func() bool { return late.counters.Dropped.Load() == 1 })
	few.Close()
	if n := h.queries.Load(); n != others {
		t.Errorf("%d queries after the sandbox is gone, want %d", n, others)
	}
}

func TestQueriesOfTheHostAreBounded(t *testing.T) {
	for sockets, want := range map[int]int64{10: maxQueries, 4000: 500, 1 << 20: maxHostQueries} {
		h := NewHost(sockets)
		n := int64(0)
		for h.takeQuery(1) {
			n++
		}
		if n != want {
			t.Errorf("with %d sockets there are %d queries, want %d", sockets, n, want)
		}
		h.giveQuery()
		if h.takeQuery(fewQueries+1) || !h.takeQuery(fewQueries) {
			t.Errorf("with %d sockets: the last is not for a sandbox that has few", sockets)
		}
	}
}
