package backlog

import (
	"math"
	"sync/atomic"
	"testing"
	"time"
)

// host is a host whose RAM has room for 16 layers of one byte, and whose disk is never full.
type host struct {
	unflushed, lines atomic.Uint64 // layers of the owner "a"
	counts           atomic.Int64  // how often the layers were counted
}

func (h *host) backlog() *Backlog {
	layers := func() []Layer {
		return []Layer{{Owner: "a", Bytes: h.unflushed.Load}}[:min(1, h.unflushed.Load())]
	}
	free := func() (uint64, error) {
		h.counts.Add(1)
		return 16 - h.unflushed.Load() - h.lines.Load(), nil
	}
	return New(Host{Unflushed: layers, Lines: func() map[string]uint64 { return map[string]uint64{"a": h.lines.Load()} },
		FreeRAM: free, FreeDisk: func() (uint64, error) { return math.MaxUint64, nil },
		Cool: func(uint64) bool { return false }})
}

// While many branches wait, the layers are seldom counted. Between two counts, no room is assigned
// twice. A waiting branch gets its room soon after enough RAM is free.
func TestUsageIsRemembered(t *testing.T) {
	h := &host{}
	b := h.backlog()
	b.Age = time.Hour
	w := &room{owner: "a", bytes: 20, in: make(chan struct{})}
	a := 0
	for ; a < 20 && b.enter(&room{owner: "a", bytes: 1}); a++ {
	}
	b.queue = []*room{w}
	for range 100 {
		b.Admit()
	}
	if n := h.counts.Load(); n != 1 || a != 12 {
		t.Errorf("counted %d times, and a has %d of 16 places, want three quarters", n, a)
	}

	h.unflushed.Store(1)
	b = h.backlog()
	b.Age = time.Second
	b.enter(&room{owner: "b", bytes: 20}) // counts, and finds no room
	b.queue = []*room{w}
	b.Admit()
	h.unflushed.Store(0)
	select {
	case <-w.in:
	case <-time.After(20 * time.Second):
		t.Error("no room is assigned, although nothing is in RAM only")
	}
}

// If a branch has no room because of its owner's lines, it does not delay branches of other owners.
func TestLinesDelayNoOtherOwner(t *testing.T) {
	h := &host{}
	h.lines.Store(1)
	backlog := h.backlog()
	a := &room{owner: "a", bytes: 20, in: make(chan struct{})}
	b := &room{owner: "b", bytes: 30, in: make(chan struct{})} // the only layer may have any size
	backlog.queue = []*room{a, b}
	if backlog.Admit() == 0 {
		t.Error("a has room")
	}
	select {
	case <-b.in:
	default:
		t.Error("b waits for a")
	}
	if len(backlog.queue) != 1 || backlog.queue[0] != a {
		t.Errorf("%d layers are in the queue, want that of a", len(backlog.queue))
	}
}
