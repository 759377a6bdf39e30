package placement

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// random returns nodes in random states. Their capacities are small, so many nodes are full.
func random(r *rand.Rand) []*Node {
	nodes := make([]*Node, 1+r.IntN(12))
	for i := range nodes {
		n := &Node{Name: fmt.Sprintf("node-%d", i), State: State(r.IntN(3)), Has: map[string]Heat{},
			Capacity: Resources{r.Uint64N(6), r.Uint64N(4) * 1024, r.Uint64N(9)}, ReadRate: float64(r.IntN(3)) * 500,
			FetchRate: float64(r.IntN(3)) * 100}
		n.Used = Resources{r.Uint64N(n.Capacity.Sandboxes + 1), r.Uint64N(n.Capacity.MemoryMiB + 1),
			r.Uint64N(n.Capacity.VCPUs + 1)}
		for s := range 3 {
			n.Has[fmt.Sprint(s)] = Heat(r.IntN(3))
		}
		nodes[i] = n
	}
	return nodes
}

func randomRequest(r *rand.Rand) Request {
	return Request{Snapshot: fmt.Sprint(r.IntN(4)), SnapshotMiB: r.Uint64N(4000), N: r.Uint64N(4),
		Each: Resources{MemoryMiB: r.Uint64N(1024), VCPUs: r.Uint64N(3)}, TenantHas: r.Uint64N(5), TenantMax: r.Uint64N(6),
		Key: fmt.Sprint(r.Uint64()), Policy: Policy(r.IntN(2))}
}

// fits() reports whether a node has room. It computes this in another way than Choose does.
func fits(n *Node, r Request) bool {
	within := func(used, each, of uint64) bool { return of == 0 || used+each*max(r.N, 1) <= of }
	return within(n.Used.Sandboxes, 1, n.Capacity.Sandboxes) &&
		within(n.Used.MemoryMiB, r.Each.MemoryMiB, n.Capacity.MemoryMiB) &&
		within(n.Used.VCPUs, r.Each.VCPUs, n.Capacity.VCPUs)
}

// can(n, r) says whether a node can take a request.
func can(n *Node, r Request) bool {
	_, gets := n.delay(&r)
	return n.State == Ready && gets && fits(n, r)
}

func TestProperties(t *testing.T) {
	const cases = 20000
	r, refused, placed := rand.New(rand.NewPCG(1, 2)), map[error]int{}, map[Heat]int{}
	for range cases {
		nodes, req := random(r), randomRequest(r)
		i, err := Choose(nodes, req)
		if over := req.TenantMax > 0 && req.TenantHas+max(req.N, 1) > req.TenantMax; over != errors.Is(err, ErrQuota) {
			t.Fatalf("%+v: node %d, %v", req, i, err)
		}
		if err != nil {
			refused[err]++
			if !errors.Is(err, ErrQuota) && slices.ContainsFunc(nodes, func(n *Node) bool { return can(n, req) }) {
				t.Fatalf("%+v: %v, but a node can take it", req, err)
			}
			continue
		}
		n := nodes[i]
		req.N, req.Each.Sandboxes = max(req.N, 1), 1 // the values that Choose uses
		placed[n.Has[req.Snapshot]]++
		if !can(n, req) {
			t.Fatalf("%+v: on %+v, which must not take it", req, n)
		}
		own, _ := n.delay(&req)
		load, _ := n.with(&req)
		for _, o := range nodes {
			if !can(o, req) {
				continue
			}
			other, _ := o.delay(&req)
			otherLoad, _ := o.with(&req)
			step := 1.0 / loadSteps
			if seconds := (load - otherLoad - step) * loadSteps * spreadSecs; req.Policy == Spread && own+seconds > other+1e-9 {
				t.Fatalf("%+v: on %+v, but %+v has a much lower load or has the snapshot much sooner", req, n, o)
			}
			if req.Policy == Pack && (other < own || other == own && otherLoad > load+step) {
				t.Fatalf("%+v: on %+v, but %+v has the snapshot sooner or a higher load", req, n, o)
			}
		}
	}
	if len(refused) != 3 || len(placed) != 3 {
		t.Errorf("the cases reach too little: refused %v, placed %v", refused, placed)
	}
}

// A choice does not depend on the order of the nodes. It also does not depend on changes of nodes
// that were not chosen, as long as these nodes do not become better.
func TestStable(t *testing.T) {
	r, moved := rand.New(rand.NewPCG(3, 4)), 0
	for range 5000 {
		nodes, req := random(r), randomRequest(r)
		i, err := Choose(nodes, req)
		if err != nil {
			continue
		}
		name := nodes[i].Name
		r.Shuffle(len(nodes), func(a, b int) { nodes[a], nodes[b] = nodes[b], nodes[a] })
		for range 3 { // up to three other nodes are lost
			if at := r.IntN(len(nodes)); nodes[at].Name != name {
				nodes[at].State = Lost
			}
		}
		if j, err := Choose(nodes, req); err != nil || nodes[j].Name != name {
			t.Fatalf("%+v: on %s, then %d, %v", req, name, j, err)
		}
		at := slices.IndexFunc(nodes, func(n *Node) bool { return n.Name == name })
		nodes = slices.Delete(nodes, at, at+1)
		if _, err := Choose(nodes, req); err == nil {
			moved++
		}
	}
	if moved == 0 {
		t.Error("no request found another node")
	}
}

// Requests with different keys are distributed among equal nodes. If a node is lost, its keys are
// distributed among all remaining nodes.
func TestKeysAreDistributed(t *testing.T) {
	const count, keys = 10, 10000
	nodes := make([]*Node, count)
	for i := range nodes {
		nodes[i] = &Node{Name: fmt.Sprintf("node-%d", i), Has: map[string]Heat{"s": Hot}}
	}
	choose := func() (by [count]int, of [keys]int) {
		for k := range keys {
			i, err := Choose(nodes, Request{Snapshot: "s", Key: fmt.Sprint(k)})
			if err != nil {
				t.Fatal(err)
			}
			by[i]++
			of[k] = i
		}
		return by, of
	}
	by, before := choose()
	nodes[3].State = Lost
	left, after := choose()
	for i := range count {
		if by[i] < keys/count*7/10 || i != 3 && left[i]-by[i] < by[3]/count/2 {
			t.Errorf("node %d has %d keys, and %d after the loss", i, by[i], left[i])
		}
	}
	for k := range keys {
		if before[k] != 3 && after[k] != before[k] {
			t.Fatalf("key %d moved from node %d to %d", k, before[k], after[k])
		}
	}
}

// If the numbers of a request overflow 64 bits when they are multiplied, the request finds no room.
func TestHugeNumbers(t *testing.T) {
	node := &Node{Name: "a", Capacity: Resources{100, 1000, 100}, Has: map[string]Heat{"s": Hot}}
	for _, req := range []Request{
		{N: math.MaxUint64}, {N: 1 << 63, Each: Resources{MemoryMiB: 2}}, {N: 2, Each: Resources{VCPUs: 1 << 63}},
		{N: 1, Each: Resources{MemoryMiB: math.MaxUint64}},
	} {
		req.Snapshot = "s"
		if i, err := Choose([]*Node{node}, req); !errors.Is(err, ErrFull) {
			t.Errorf("%+v: %d, %v", req, i, err)
		}
		req.TenantMax = 50
		if i, err := Choose([]*Node{node}, req); req.N > 50 != errors.Is(err, ErrQuota) {
			t.Errorf("%+v with a quota: %d, %v", req, i, err)
		}
	}
}
