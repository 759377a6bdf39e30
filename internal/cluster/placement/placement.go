// Package placement chooses the node of a cluster on which a sandbox is created.
//
// It is pure: it has no clock, no randomness and no I/O. So a simulation can test it. The caller
// says what it knows about each node, and executes the decision. The package does not move
// sandboxes that exist.
package placement

import (
	"cmp"
	"errors"
	"hash/fnv"
)

// Reasons why there is no node for a request.
var (
	ErrQuota = errors.New("the tenant has reached its limit of sandboxes")
	ErrFull  = errors.New("no node has room")
	ErrNone  = errors.New("no node is ready that has the snapshot or can fetch it")
)

// State says whether a node may receive sandboxes.
type State int

// The states of a node. A cordoned node keeps its sandboxes, but receives no new ones.
const (
	Ready State = iota
	Cordoned
	Lost
)

// Heat says where a node has the files of a snapshot.
type Heat int

// A node has no file of an absent snapshot. Before a fork, it must fetch an absent snapshot, or read
// a cold snapshot from its disk. A hot snapshot is in the node's memory.
const (
	Absent Heat = iota
	Cold
	Hot
)

// Resources is an amount of each resource that sandboxes use. As a capacity, 0 means no limit.
type Resources struct {
	Sandboxes uint64
	MemoryMiB uint64
	VCPUs     uint64
}

// plus() returns the sum of r and n times x.
func (r Resources) plus(x Resources, n uint64) Resources {
	return Resources{r.Sandboxes + n*x.Sandboxes, r.MemoryMiB + n*x.MemoryMiB, r.VCPUs + n*x.VCPUs}
}

// load returns the fraction of a capacity that r uses, for the resource with the largest fraction.
func (r Resources) load(of Resources) float64 {
	most := 0.0
	for _, x := range [...]struct{ used, of uint64 }{
		{r.Sandboxes, of.Sandboxes}, {r.MemoryMiB, of.MemoryMiB}, {r.VCPUs, of.VCPUs},
	} {
		if x.of > 0 {
			most = max(most, float64(x.used)/float64(x.of))
		}
	}
	return most
}

// Node is what the caller knows about a node.
type Node struct {
	Name     string
	State    State
	Capacity Resources
	Used     Resources
	Has      map[string]Heat // by snapshot; a missing snapshot is absent
	// Rates at which the node reads a cold snapshot, and fetches an absent one, in MiB per second.
	// 0: it cannot.
	ReadRate, FetchRate float64
}

// Load returns the fraction of the node's capacity that is used.
func (n *Node) Load() float64 { return n.Used.load(n.Capacity) }

// Policy says how the loads of the nodes count.
type Policy int

// Spread prefers nodes with a low load, so the loss of a node takes few sandboxes with it. If these
// nodes must first get the snapshot into their memory, Spread still chooses one of them when the
// load of the other nodes is clearly higher. Pack chooses the node with the highest load among
// those that can start the request soonest, so some nodes stay empty and can be removed.
const (
	Spread Policy = iota
	Pack
)

// Request asks for a node.
type Request struct {
	Snapshot    string
	SnapshotMiB uint64    // size of the files that must be read or fetched
	N           uint64    // number of sandboxes, all on the same node; 0 means 1
	Each        Resources // need of each sandbox; Sandboxes is always 1
	// TenantHas is the tenant's number of sandboxes, and TenantMax is its maximum; 0: no limit.
	TenantHas, TenantMax uint64
	// Key decides between nodes that are otherwise equal. The same key chooses the same node as
	// long as this node is among the best.
	Key    string
	Policy Policy
}

// loadSteps is the number of steps in which loads are compared. Nodes whose loads are in the same
// step are equal. So a small change of a load does not change the choice.
const loadSteps = 16

// spreadSecs is the waiting time that counts as much as one step of load, for the policy Spread. So
// if two nodes differ by one step, a request waits up to this long for a snapshot on the node with
// the lower load.
const spreadSecs = 2.0

// rank orders the nodes that can take a request. A lower rank is better.
type rank struct {
	cost float64 // seconds until the snapshot is in memory; with Spread, also the steps of load, see spreadSecs
	load int     // with Pack, the step of the load with the request, negated
	hash uint64
}

func (r rank) compare(o rank) int {
	return cmp.Or(cmp.Compare(r.cost, o.cost), cmp.Compare(r.load, o.load), cmp.Compare(r.hash, o.hash))
}

// Choose returns the index of the best node for a request. The time until the snapshot is in the
// node's memory and the load of the node decide, as the policy of the request says. A node that
// would exceed its capacity is never chosen. The error is ErrQuota, ErrFull or ErrNone.
func Choose(nodes []*Node, r Request) (int, error) {
	r.N, r.Each.Sandboxes = max(r.N, 1), 1
	if r.TenantMax > 0 && (r.N > r.TenantMax || r.TenantHas > r.TenantMax-r.N) {
		return -1, ErrQuota
	}
	best, bestRank, err := -1, rank{}, ErrNone
	for i, n := range nodes {
		delay, ok := n.delay(&r)
		if n.State != Ready || !ok || best >= 0 && delay > bestRank.cost {
			continue
		}
		load, fits := n.with(&r)
		if !fits {
			err = ErrFull
			continue
		}
		own := rank{cost: delay}
		if step := int(load * loadSteps); r.Policy == Pack {
			own.load = -step
		} else {
			own.cost += spreadSecs * float64(step)
		}
		if best >= 0 && cmp.Or(cmp.Compare(own.cost, bestRank.cost), cmp.Compare(own.load, bestRank.load)) > 0 {
			continue // skips the hash
		}
		own.hash = hashOf(r.Key, n.Name)
		if best < 0 || own.compare(bestRank) < 0 {
			best, bestRank = i, own
		}
	}
	if best < 0 {
		return -1, err
	}
	return best, nil
}

// delay returns the seconds until the node has the snapshot of a request in its memory. It also
// reports whether the node can get the snapshot.
func (n *Node) delay(r *Request) (secs float64, ok bool) {
	rate := n.FetchRate
	switch n.Has[r.Snapshot] {
	case Hot:
		return 0, true
	case Cold:
		rate = n.ReadRate
	}
	if !(rate > 0) {
		return 0, false
	}
	return float64(r.SnapshotMiB) / rate, true
}

// with(r) returns the load that the node would have with the sandboxes of a request. It also
// reports whether the node has room for them.
func (n *Node) with(r *Request) (load float64, fits bool) {
	for _, x := range [...]struct{ used, each, of uint64 }{
		{n.Used.Sandboxes, 1, n.Capacity.Sandboxes}, {n.Used.MemoryMiB, r.Each.MemoryMiB, n.Capacity.MemoryMiB},
		{n.Used.VCPUs, r.Each.VCPUs, n.Capacity.VCPUs},
	} {
		// Divide, because a product with a hostile number could overflow.
		if x.of > 0 && (x.used > x.of || x.each > 0 && (x.of-x.used)/x.each < r.N) {
			return 0, false
		}
	}
	return n.Used.plus(r.Each, r.N).load(n.Capacity), true
}

// hashOf returns a node's place in the order that a key gives to the nodes. Each key has an order
// of its own. So if a node is lost, its keys are distributed among all other nodes.
func hashOf(key, node string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // never fails
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(node))
	x := h.Sum64() // similar names have similar hashes; the steps of splitmix64 distribute them
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
