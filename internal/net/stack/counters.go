package stack

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/forkd/forkd/internal/proto/netproto"
)

// Counters count a sandbox's traffic. They remain when the sandbox's stack is closed. The zero
// value is ready to use.
type Counters struct {
	Active     atomic.Bool
	Open       atomic.Int32
	Passed     atomic.Uint64
	Up, Down   atomic.Uint64
	DNSQueries atomic.Uint64
	Dropped    atomic.Uint64

	mu      sync.Mutex
	reasons map[string]uint64
	recent  []netproto.Refusal // latest first
	passed  []netproto.Passage // latest first
}

// note adds a refused destination.
func (c *Counters) note(r netproto.Refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.recent, func(o netproto.Refusal) bool {
		return o.Protocol == r.Protocol && o.Address == r.Address && o.Name == r.Name && o.Reason == r.Reason
	})
	r.Count = 1
	if i >= 0 {
		r.Count += c.recent[i].Count
	}
	c.recent = toFront(c.recent, i, r)
}

// pass adds the destination of a permitted connection that has ended.
func (c *Counters) pass(p netproto.Passage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Passed.Add(1)
	i := slices.IndexFunc(c.passed, func(o netproto.Passage) bool {
		return o.Protocol == p.Protocol && o.Address == p.Address && o.Name == p.Name
	})
	p.Count = 1
	if i >= 0 {
		o := c.passed[i]
		p.UpBytes, p.DownBytes, p.Count = p.UpBytes+o.UpBytes, p.DownBytes+o.DownBytes, p.Count+o.Count
	}
	c.passed = toFront(c.passed, i, p)
}

// toFront removes element i of a list (nothing if i is -1), and inserts an element at the front of
// the list. If the list is full, the new element replaces the oldest one.
func toFront[T any](list []T, i int, first T) []T {
	switch {
	case i >= 0:
		list = slices.Delete(list, i, i+1)
	case len(list) == netproto.MaxRecent:
		list = list[:netproto.MaxRecent-1]
	}
	return slices.Insert(list, 0, first)
}

// refuse counts a refusal. A guest cannot make the map of reasons grow without bound, because all
// reasons are constants of this program.
func (c *Counters) refuse(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reasons == nil {
		c.reasons = map[string]uint64{}
	}
	c.reasons[reason]++
}

// Stats returns the counters in the form that the daemon receives.
func (c *Counters) Stats() netproto.Stats {
	m := netproto.Stats{Active: c.Active.Load(), Open: uint32(c.Open.Load()), Connections: c.Passed.Load(),
		UpBytes: c.Up.Load(), DownBytes: c.Down.Load(), DNSQueries: c.DNSQueries.Load(), Dropped: c.Dropped.Load()}
	c.mu.Lock()
	defer c.mu.Unlock()
	for reason, n := range c.reasons {
		m.Refused = append(m.Refused, netproto.Refusals{Reason: reason, Count: n})
	}
	m.Recent, m.Passed = slices.Clone(c.recent), slices.Clone(c.passed)
	slices.SortFunc(m.Refused, func(a, b netproto.Refusals) int { return strings.Compare(a.Reason, b.Reason) })
	return m
}

// Add adds the counters of o, except values that describe a current state, such as Active.
func (c *Counters) Add(o *Counters) {
	c.Passed.Add(o.Passed.Load())
	c.Up.Add(o.Up.Load())
	c.Down.Add(o.Down.Load())
	c.DNSQueries.Add(o.DNSQueries.Load())
	c.Dropped.Add(o.Dropped.Load())
	for _, r := range o.Stats().Refused {
		c.mu.Lock()
		if c.reasons == nil {
			c.reasons = map[string]uint64{}
		}
		c.reasons[r.Reason] += r.Count
		c.mu.Unlock()
	}
}
