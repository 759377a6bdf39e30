// Package vmpool starts and finds VM processes for the daemon, and keeps a pool of them ready for
// forks.
//
// A process in the pool is called a shell: it has created its VM, but nothing runs in the VM. The
// code that takes a shell from the pool decides what runs in the VM, and who owns it. Package
// vmmclient implements the control protocol.
package vmpool

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/forkd/forkd/internal/proto/vm"
)

// AtOnce is how many VMs are killed, or taken over, at a time. Killing a VM takes time, because the
// kernel has to free its memory. Taking over a VM that does not answer also takes time.
const AtOnce = 16

// Pool keeps Size shells ready for each machine shape that was forked lately. If forks have found
// too few shells, the pool keeps more shells for some time. The pool never delays a fork, because
// it starts shells in the background, one at a time, while no fork is running.
type Pool struct {
	cfg Config

	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	wake   chan struct{} // wakes the goroutine that refills the pool; has a buffer of one value

	mu sync.Mutex
	// +checklocks:mu
	busy int // number of running forks
	// +checklocks:mu
	ready map[vm.Shape][]*Shell
	// +checklocks:mu
	want map[string]vm.Shape // shapes for which shells are kept, by the ID of the snapshot that needs them
	// +checklocks:mu
	demand map[vm.Shape]*demand
}

// Config holds the parameters of a Pool.
type Config struct {
	VMMs   VMMs
	RunDir string // directory that contains the shells' directories
	Size   int    // number of ready shells for each shape; 0: none
	Most   int    // maximum number of ready shells after forks have found too few; at least Size
	Log    *slog.Logger

	Lasts time.Duration // how long the pool keeps more than Size shells; 0 means 5 min

	// Refilled, if set, is called for each shell that the pool has started, with the time that the
	// start took.
	Refilled func(took time.Duration)
}

// New returns an empty pool.
func New(cfg Config) *Pool {
	ctx, cancel := context.WithCancel(context.Background())
	if cfg.Lasts == 0 {
		cfg.Lasts = defaultLasts
	}
	p := &Pool{
		cfg: cfg, ctx: ctx, cancel: cancel,
		done: make(chan struct{}), wake: make(chan struct{}, 1),
		ready: make(map[vm.Shape][]*Shell), want: make(map[string]vm.Shape),
		demand: make(map[vm.Shape]*demand),
	}
	go p.run()
	return p
}

// Begin is called at the start of a fork, and End at its end. During the fork, the pool starts no
// shells, because that would delay the fork.
func (p *Pool) Begin() {
	p.mu.Lock()
	p.busy++
	p.mu.Unlock()
}

// End allows the pool to start shells again. See Begin.
func (p *Pool) End() {
	p.mu.Lock()
	p.busy--
	p.mu.Unlock()
	p.kick()
}

// Keep tells the pool to keep shells ready for a snapshot, until Drop is called. Snapshots of the
// same shape share shells.
func (p *Pool) Keep(snapshotID string, shape vm.Shape) {
	p.mu.Lock()
	p.want[snapshotID] = shape
	p.mu.Unlock()
	p.kick()
}

// Drop reverses Keep.
func (p *Pool) Drop(snapshotID string) {
	p.mu.Lock()
	var victims []*Shell
	shape := p.want[snapshotID]
	delete(p.want, snapshotID)
	if !p.wantedLocked(shape) {
		victims = p.ready[shape]
		delete(p.ready, shape)
		delete(p.demand, shape)
	}
	p.mu.Unlock()
	p.kill(victims)
}

// +checklocks:p.mu
func (p *Pool) wantedLocked(shape vm.Shape) bool {
	for _, s := range p.want {
		if s == shape {
			return true
		}
	}
	return false
}

// Take returns a shell. If no shell is ready, Take starts one.
func (p *Pool) Take(ctx context.Context, shape vm.Shape) (s *Shell, pooled bool, err error) {
	if s := p.takeReady(shape); s != nil {
		return s, true, nil
	}
	s, err = Spawn(ctx, p.cfg.VMMs, p.cfg.RunDir, shape)
	return s, false, err
}

func (p *Pool) takeReady(shape vm.Shape) *Shell {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.takenLocked(shape)
	for {
		list := p.ready[shape]
		if len(list) == 0 {
			return nil
		}
		s := list[len(list)-1]
		p.ready[shape] = list[:len(list)-1]
		close(s.taken)
		if s.alive() {
			return s
		}
		go p.kill([]*Shell{s}) // the shell has died, so this only removes its files
	}
}

// Close stops the pool and kills all shells in it.
func (p *Pool) Close() {
	p.cancel()
	<-p.done
	p.mu.Lock()
	var victims []*Shell
	for _, list := range p.ready {
		victims = append(victims, list...)
	}
	clear(p.ready)
	p.mu.Unlock()
	p.kill(victims)
}

func (p *Pool) kill(shells []*Shell) {
	var group errgroup.Group
	group.SetLimit(AtOnce)
	for _, s := range shells {
		group.Go(func() error {
			if err := s.VMM.Kill(); err != nil {
				p.cfg.Log.Warn("end a pooled VMM", "id", s.ID, "error", err)
			}
			return nil
		})
	}
	_ = group.Wait()
}

func (p *Pool) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// poolRetry is how long the pool waits after a shell could not be started, for example because the
// host is out of memory.
const poolRetry = 5 * time.Second

func (p *Pool) run() {
	defer close(p.done)
	for {
		p.kill(p.surplus())
		shape, ok := p.missing()
		if !ok {
			select {
			case <-p.ctx.Done():
				return
			case <-p.wake:
			case <-p.forgotten():
			}
			continue
		}
		began := time.Now()
		s, err := Spawn(p.ctx, p.cfg.VMMs, p.cfg.RunDir, shape)
		if err != nil {
			if p.ctx.Err() != nil {
				return
			}
			p.cfg.Log.Warn("refill the pool", "error", err)
			select {
			case <-p.ctx.Done():
				return
			case <-time.After(poolRetry):
			}
			continue
		}
		if p.cfg.Refilled != nil {
			p.cfg.Refilled(time.Since(began))
		}
		p.mu.Lock()
		wanted := p.wantedLocked(shape)
		if wanted {
			p.ready[shape] = append(p.ready[shape], s)
			go p.watch(shape, s)
		}
		p.mu.Unlock()
		if !wanted {
			p.kill([]*Shell{s})
		}
	}
}

// watch replaces a shell that ends while it is in the pool. It first waits, because the next shell
// may end for the same reason.
func (p *Pool) watch(shape vm.Shape, s *Shell) {
	select {
	case <-s.taken:
		return
	case <-s.VMM.Done():
	}
	if !p.remove(shape, s) {
		return // the shell has left the pool
	}
	p.cfg.Log.Warn("a pooled VMM has ended", "id", s.ID, "reason", DescribeExit(s.VMM.Exit()))
	p.kill([]*Shell{s})
	select {
	case <-time.After(poolRetry):
		p.kick()
	case <-p.ctx.Done():
	}
}

// remove removes a shell from the pool. It returns false if the pool does not have the shell.
func (p *Pool) remove(shape vm.Shape, s *Shell) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.ready[shape], s)
	if i >= 0 {
		p.ready[shape] = slices.Delete(p.ready[shape], i, i+1)
	}
	return i >= 0
}

// missing returns a shape that has fewer ready shells than its target.
func (p *Pool) missing() (vm.Shape, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy > 0 || p.ctx.Err() != nil {
		return vm.Shape{}, false
	}
	for _, shape := range p.want {
		if len(p.ready[shape]) < p.targetLocked(shape) {
			return shape, true
		}
		p.fullLocked(shape)
	}
	return vm.Shape{}, false
}

// Wanted returns the number of shells in a full pool, without the additional shells that are kept
// for some time.
func (p *Pool) Wanted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	shapes := make(map[vm.Shape]bool)
	for _, shape := range p.want {
		shapes[shape] = true
	}
	return len(shapes) * p.cfg.Size
}

// Count returns the number of ready shells.
func (p *Pool) Count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, list := range p.ready {
		n += len(list)
	}
	return n
}
