package stack

import (
	"sync"
	"testing"

	"github.com/forkd/forkd/internal/net/nettest"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// A connection that has not named its server takes a place, and the number of places is limited.
// When half of the places are in use, a sandbox with many such connections cannot open another, but
// a sandbox with few can.
func TestFewConnectionsHaveRoom(t *testing.T) {
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":80"), echo)
	h := NewHost(Sockets(1<<20, LeastMemory))
	serveDNS(t, w, h, "good.example="+web)
	if !h.peeks.take(h.peeks.most / 2) { // simulates other sandboxes
		t.Fatal("the room is full")
	}
	greedy := addRig(t, w, h, "public !x.example", netproto.Limits{})
	var idle sync.WaitGroup
	for range fewPeeks + 1 {
		idle.Go(func() {
			if c, err := greedy.dial(t, web+":80"); err == nil { // a connection that sends nothing
				t.Cleanup(func() { _ = c.Close() })
			}
		})
	}
	waitFor(t, "a connection is refused", func() bool { return greedy.count(tooManyHost) == 1 })
	modest := addRig(t, w, h, "allow good.example", netproto.Limits{})
	modest.lookup(t, "good.example", false)
	modest.mustDial(t, web+":80")
	if n := greedy.count(tooManyHost); n != 1 {
		t.Errorf("%d connections were refused", n)
	}
	idle.Wait()
}

// The second half of a room is for sandboxes with few places.
func TestSecondHalfOfARoom(t *testing.T) {
	r := room{most: 10}
	for range 5 {
		if !r.takeFor(1, 9, 2) {
			t.Fatal("the first half is not for all")
		}
	}
	if r.takeFor(1, 3, 2) || !r.takeFor(1, 2, 2) || r.used.Load() != 6 {
		t.Errorf("%d places are used", r.used.Load())
	}
}
