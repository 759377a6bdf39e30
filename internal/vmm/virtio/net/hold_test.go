package net

import (
	"runtime"
	"testing"

	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
)

// A pause waits for at most one frame in each direction, however many frames are queued and however
// long they are.
func TestHoldIsBounded(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	g := start(t, allFeatures, 1536, 120)
	g.awaken()
	g.tr.Quiesce()
	long := message(segmented, 40000)
	const frames = 3 // as many frames as fit into a socket
	for range frames {
		g.post(long)
		g.fromPeer(long)
	}
	for name, c := range map[string]struct {
		serve func() (bool, error)
		ring  *virtiotest.Ring
		each  int // number of receive buffers that one frame uses
	}{
		"frames of the guest": {g.dev.transmit, g.tx, 1},
		"frames of the peer":  {g.dev.receive, g.rx, (len(long) + 1535) / 1536},
	} {
		total, most := 0, 0
		hold := virtiotest.NewHold(t, nil)
		look := func() {
			hold.Look()
			used := 0
			for _, _, ok := c.ring.Poll(); ok; _, _, ok = c.ring.Poll() {
				used++
			}
			total, most = total+used, max(most, used)
		}
		g.dev.transport = &virtiotest.Direct{Looked: look}
		if _, err := c.serve(); err != nil {
			t.Fatal(err)
		}
		look()
		t.Logf("net    %-28s %8.2f ms %9d KiB", name, float64(hold.Time.Microseconds())/1000, most/c.each*len(long)>>10)
		if total != frames*c.each || most != c.each {
			t.Errorf("%s: %d of %d buffers were used between two looks at a pause, want %d", name, most, total, c.each)
		}
	}
	g.dev.transport = g.tr
	if err := g.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
}
