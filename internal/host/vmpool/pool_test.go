package vmpool_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
)

// newPool returns a pool of fake VMs that keeps shells for the given shape.
func newPool(t *testing.T, cfg vmpool.Config, shape vm.Shape) (*vmpool.Pool, *vmfake.VMMs) {
	t.Helper()
	vmms := &vmfake.VMMs{}
	cfg.VMMs, cfg.RunDir, cfg.Log = vmms, t.TempDir(), slog.New(slog.DiscardHandler)
	p := vmpool.New(cfg)
	p.Keep("s", shape)
	return p, vmms
}

// take takes n shells, as one fork does, and kills them.
func take(t *testing.T, p *vmpool.Pool, shape vm.Shape, n int) {
	t.Helper()
	p.Begin()
	defer p.End()
	for range n {
		s, _, err := p.Take(context.Background(), shape)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.VMM.Kill(); err != nil {
			t.Fatal(err)
		}
	}
}

// This function waits until a pool has the wanted number of shells.
func eventually(t *testing.T, p *vmpool.Pool, want int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); p.Count() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the pool has %d shells, want %d", p.Count(), want)
		}
	}
}

// If forks take more shells than the pool has, the pool grows to that number, up to its maximum. If
// several forks take shells before the pool is full again, the pool grows to the sum.
func TestPoolGrowsByDemand(t *testing.T) {
	shape := vm.Shape{VCPUs: 1}
	p, vmms := newPool(t, vmpool.Config{Size: 2, Most: 6}, shape)
	eventually(t, p, 2)
	take(t, p, shape, 4)
	eventually(t, p, 4)
	p.Begin() // prevents a refill
	take(t, p, shape, 3)
	take(t, p, shape, 2)
	p.End()
	eventually(t, p, 5)
	take(t, p, shape, 20)
	eventually(t, p, 6)
	if p.Wanted() != 2 {
		t.Errorf("a full pool has %d shells, want 2", p.Wanted())
	}
	p.Drop("s")
	eventually(t, p, 0)
	p.Close()
	if n := vmms.Count(); n != 0 {
		t.Errorf("%d VMs are left", n)
	}
}

// When the demand expires, the pool kills the shells that it had only because of the demand.
func TestPoolShrinks(t *testing.T) {
	shape := vm.Shape{VCPUs: 1}
	p, vmms := newPool(t, vmpool.Config{Size: 2, Most: 6, Lasts: 100 * time.Millisecond}, shape)
	for grown := false; !grown; { // repeat, because on a slow host the demand may expire too early
		take(t, p, shape, 5)
		end := time.Now().Add(200 * time.Millisecond)
		for ; !grown && time.Now().Before(end); time.Sleep(time.Millisecond) {
			grown = p.Count() == 5
		}
	}
	eventually(t, p, 2)
	for end := time.Now().Add(time.Minute); vmms.Count() != 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d VMs are left, want 2", vmms.Count())
		}
	}
	p.Close()
}

// Forget tells the pool to kill the additional shells immediately.
func TestPoolForgets(t *testing.T) {
	shape := vm.Shape{VCPUs: 1}
	p, _ := newPool(t, vmpool.Config{Size: 2, Most: 6}, shape)
	defer p.Close()
	take(t, p, shape, 5)
	eventually(t, p, 5)
	p.Forget()
	eventually(t, p, 2)
}

// A pool of size 0 stays empty.
func TestNoPool(t *testing.T) {
	shape := vm.Shape{VCPUs: 1}
	p, vmms := newPool(t, vmpool.Config{Most: 6}, shape)
	take(t, p, shape, 5)
	p.Close() // waits for shells that are being started
	if vmms.Spawned != 5 || p.Count() != 0 {
		t.Errorf("%d VMs were started, %d wait; want 5, 0", vmms.Spawned, p.Count())
	}
}
