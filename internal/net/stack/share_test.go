package stack

import (
	"math"
	"net/netip"
	"testing"

	"github.com/forkd/forkd/internal/net/guesttest"
	"github.com/forkd/forkd/internal/net/policy"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// fill begins flows until one is refused. It returns their number and the reason of the refusal.
func fill(t *testing.T, h *Host, l netproto.Limits) (n int, refusal string) {
	t.Helper()
	_, file := guesttest.New(t)
	s, err := New(h, file, &netproto.Attach{ID: "sb-test", Policy: makePolicy(t, "public"), Limits: l}, &Counters{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	to := netip.MustParseAddrPort(web + ":80")
	for {
		f, refusal := s.begin(policy.TCP, to)
		if f == nil {
			return n, refusal
		}
		t.Cleanup(func() { s.end(f) })
		n++
	}
}

// No sandbox can take all connections of the host, even if its own limit is higher.
func TestOneSandboxLeavesConnectionsForOthers(t *testing.T) {
	all := netproto.Limits{Connections: math.MaxUint32}
	h := NewHost(100)
	if n, refusal := fill(t, h, all); n != 75 || refusal != tooMany {
		t.Errorf("of 100 one sandbox has %d, then %s; want 75, then %s", n, refusal, tooMany)
	}
	if n, refusal := fill(t, h, all); n != 25 || refusal != tooManyHost {
		t.Errorf("another has %d, then %s; want 25, then %s", n, refusal, tooManyHost)
	}
	if n, refusal := fill(t, NewHost(2*netproto.MaxConnections), all); n != netproto.MaxConnections || refusal != tooMany {
		t.Errorf("on a large host one sandbox has %d, then %s; want %d", n, refusal, netproto.MaxConnections)
	}
	if n, _ := fill(t, NewHost(2*netproto.MaxConnections), netproto.Limits{}); n != defaultConnections {
		t.Errorf("a sandbox that asks for nothing has %d, want %d", n, defaultConnections)
	}
}
