package placement

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Size of the simulation. The table in docs/cluster.md comes from
// go test ./internal/cluster/placement -run Sim -v -sim.nodes 1000 -sim.sandboxes 1000
var (
	simNodes     = flag.Int("sim.nodes", 40, "number of simulated nodes")
	simSandboxes = flag.Int("sim.sandboxes", 200, "number of simulated sandboxes per node, at most")
)

// Constants of the simulation.
const (
	simSnapshots = 200  // snapshots, whose popularity follows Zipf's law
	simHotMost   = 24   // maximum number of hot snapshots of a node; further ones displace the oldest
	simTenants   = 20   // tenants, each with a quota of a tenth of the cluster
	simFill      = 0.85 // part of the capacity that is filled before the churn
	simFork      = 19   // children of a fork, at most
	simLosses    = 20   // one in this many nodes is lost during the churn, and returns empty
)

// world is a simulated cluster.
type world struct {
	rand      *rand.Rand
	zipf      *rand.Zipf
	nodes     []*Node
	hot       [][]string // hot snapshots of each node, oldest first
	forks     []simulated
	sandboxes uint64
	tenants   [simTenants]uint64
	made      int
}

// simulated is a simulated fork, whose children live and end together.
type simulated struct {
	node, tenant int
	n            uint64
}

// figures counts what happened to forks in a phase of the simulation.
type figures struct{ placed, hot, cold, fetched, full, quota, lost int }

var simEach = Resources{Sandboxes: 1, MemoryMiB: 64, VCPUs: 1}

func newWorld(nodes, each int) *world {
	w := &world{rand: rand.New(rand.NewPCG(5, 6)), hot: make([][]string, nodes)}
	w.zipf = rand.NewZipf(w.rand, 1.2, 1, simSnapshots-1)
	for i := range nodes {
		// Each node has a tenth of all snapshots on its disk, and memory that differs from the
		// average by at most an eighth.
		n := &Node{Name: fmt.Sprintf("node-%04d", i), Has: map[string]Heat{}, ReadRate: 1000, FetchRate: 100,
			Capacity: Resources{Sandboxes: uint64(each), MemoryMiB: uint64(each*64) * uint64(7+w.rand.IntN(3)) / 8}}
		for s := range simSnapshots {
			if w.rand.IntN(10) == 0 {
				n.Has[fmt.Sprint(s)] = Cold
			}
		}
		w.nodes = append(w.nodes, n)
	}
	return w
}

// create places a fork of a random tenant and snapshot.
func (w *world) create(t *testing.T, p Policy, f *figures) {
	t.Helper()
	tenant := w.rand.IntN(simTenants)
	quota := uint64(len(w.nodes)) * uint64(*simSandboxes) / 10
	r := Request{Snapshot: fmt.Sprint(w.zipf.Uint64()), SnapshotMiB: 512, N: 1 + w.rand.Uint64N(simFork), Each: simEach,
		TenantHas: w.tenants[tenant], TenantMax: quota, Key: fmt.Sprint(w.made), Policy: p}
	w.made++
	i, err := Choose(w.nodes, r)
	switch {
	case errors.Is(err, ErrQuota):
		f.quota++
		return
	case err != nil:
		f.full++
		return
	}
	n := w.nodes[i]
	f.placed++
	switch n.Has[r.Snapshot] {
	case Hot:
		f.hot++
	case Cold:
		f.cold++
	case Absent:
		f.fetched++
	}
	w.heat(i, r.Snapshot)
	n.Used = n.Used.plus(simEach, r.N)
	w.tenants[tenant] += r.N
	w.sandboxes += r.N
	w.forks = append(w.forks, simulated{i, tenant, r.N})
	if n.Used.Sandboxes > n.Capacity.Sandboxes || n.Used.MemoryMiB > n.Capacity.MemoryMiB || w.tenants[tenant] > quota {
		t.Fatalf("%+v has more than its capacity, or tenant %d more than its quota", n.Used, tenant)
	}
}

func (w *world) heat(i int, snapshot string) {
	n := w.nodes[i]
	if n.Has[snapshot] == Hot {
		return
	}
	if n.Has[snapshot] = Hot; len(w.hot[i]) == simHotMost {
		n.Has[w.hot[i][0]] = Cold
		w.hot[i] = w.hot[i][1:]
	}
	w.hot[i] = append(w.hot[i], snapshot)
}

// end ends a random fork.
func (w *world) end() {
	if len(w.forks) > 0 {
		w.drop(w.rand.IntN(len(w.forks)))
	}
}

func (w *world) drop(at int) {
	s, n := w.forks[at], w.nodes[w.forks[at].node]
	n.Used = Resources{n.Used.Sandboxes - s.n, n.Used.MemoryMiB - s.n*simEach.MemoryMiB, n.Used.VCPUs - s.n*simEach.VCPUs}
	w.tenants[s.tenant] -= s.n
	w.sandboxes -= s.n
	w.forks[at] = w.forks[len(w.forks)-1]
	w.forks = w.forks[:len(w.forks)-1]
}

// lose simulates the loss of a node with its sandboxes and memory. The node's disk survives.
func (w *world) lose(f *figures) *Node {
	i := w.rand.IntN(len(w.nodes))
	for at := len(w.forks) - 1; at >= 0; at-- {
		if w.forks[at].node == i {
			f.lost += int(w.forks[at].n)
			w.drop(at)
		}
	}
	n := w.nodes[i]
	n.State = Lost
	for _, s := range w.hot[i] {
		n.Has[s] = Cold
	}
	w.hot[i] = nil
	return n
}

// row returns a row of the table.
func (w *world) row(policy, phase string, f figures) string {
	low, high, sum, empty := 1.0, 0.0, 0.0, 0
	for _, n := range w.nodes {
		load := n.Used.load(n.Capacity)
		low, high, sum = min(low, load), max(high, load), sum+load
		if n.Used.Sandboxes == 0 {
			empty++
		}
	}
	part := func(n int) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(max(f.placed, 1))) }
	return fmt.Sprintf("| %s | %s | %d | %d | %s | %s | %s | %d | %d | %d | %.0f / %.0f / %.0f %% | %d |", policy, phase, f.placed, w.sandboxes,
		part(f.hot), part(f.cold), part(f.fetched), f.full, f.quota, f.lost, 100*low, 100*sum/float64(len(w.nodes)), 100*high,
		empty)
}

// The simulation fills a cluster, churns it while nodes are lost and return, and checks after every
// placement that no capacity and no quota is exceeded. It prints the table of docs/cluster.md.
func TestSim(t *testing.T) {
	count, all := *simNodes, *simNodes**simSandboxes
	rows := []string{"", "| policy | phase | forks | sandboxes then | hot | cold | fetched | no room | over quota | sandboxes lost | " +
		"load min / mean / max | empty nodes |", "|---|---|---|---|---|---|---|---|---|---|---|---|"}
	for p, name := range []string{Spread: "spread", Pack: "pack"} {
		w, fill, churn := newWorld(count, *simSandboxes), figures{}, figures{}
		began := processorTime(t)
		for w.sandboxes < uint64(simFill*float64(all)) && fill.full+fill.quota <= all {
			w.create(t, Policy(p), &fill)
		}
		rows = append(rows, w.row(name, "fill", fill))
		steps := w.made / 2
		var gone *Node
		for step := range steps {
			w.end()
			w.create(t, Policy(p), &churn)
			if step%(steps/max(count/simLosses, 1)) == 0 {
				if gone != nil {
					gone.State = Ready
				}
				gone = w.lose(&churn)
			}
			if gone.Used.Sandboxes != 0 {
				t.Fatalf("%s is lost, and has sandboxes", gone.Name)
			}
		}
		rows = append(rows, w.row(name, "churn", churn))
		if min(fill.hot, fill.cold, fill.fetched, churn.hot, churn.lost) == 0 {
			t.Errorf("%s: %+v, then %+v: the simulation reaches too little", name, fill, churn)
		}
		t.Logf("%s: %d placements among %d nodes, %.1f µs of processor time each, with all that the simulation does", name,
			w.made, count, float64((processorTime(t)-began).Microseconds())/float64(w.made))
	}
	t.Log(strings.Join(rows, "\n"))
}

// processorTime returns the processor time of this process.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkChoose(b *testing.B) {
	for _, count := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			w := newWorld(count, 1000)
			for i := range w.nodes {
				w.heat(i, "0")
			}
			for i := range b.N {
				r := Request{Snapshot: fmt.Sprint(i % simSnapshots), SnapshotMiB: 512, Each: simEach, Key: fmt.Sprint(i)}
				if _, err := Choose(w.nodes, r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
