// Package vmpool has the VM processes of the daemon's side: what one can do, how it is started and
// found again, and a pool of those that wait for a fork.
//
// A process in the pool is a shell: its VM is created and empty. What is put into it, and who owns
// it from then on, is the business of those who take it; the control protocol is package
// vmmclient's.
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

// AtOnce is how many VMs are ended or taken over at the same time. To end one takes the kernel a
// while, most of it for its memory; one that does not answer takes long to be taken over.
const AtOnce = 16

// Pool keeps shells ready for every machine shape that was forked lately: Size of them, and more
// for a while where forks have found too few. It never makes a fork wait: refilling happens in the
// background, one shell at a time, while no fork is running.
type Pool struct {
	cfg Config

	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	wake   chan struct{} // has room for one

	mu sync.Mutex
	// +checklocks:mu
	busy int // forks that are running
	// +checklocks:mu
	ready map[vm.Shape][]*Shell
	// +checklocks:mu
	want map[string]vm.Shape // by ID of the hot snapshot
	// +checklocks:mu
	demand map[vm.Shape]*demand
}

// Config is what a Pool works with.
type Config struct {
	VMMs   VMMs
	RunDir string // a directory for each shell goes into it
	Size   int    // ready shells per shape; 0: none
	Most   int    // so many at most where forks have found too few; below Size: no more than that
	Log    *slog.Logger

	Lasts time.Duration // for how long forks are remembered that have found too few; 0: 5 min

	Refilled func(took time.Duration) // called for each shell that was started for the pool; nil: nobody
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

// Begin and End bracket a fork: refilling would compete with it.
func (p *Pool) Begin() {
	p.mu.Lock()
	p.busy++
	p.mu.Unlock()
}

// End: see Begin.
func (p *Pool) End() {
	p.mu.Lock()
	p.busy--
	p.mu.Unlock()
	p.kick()
}

// Keep starts to hold shells for a snapshot, Drop stops it. Snapshots of one shape share shells.
func (p *Pool) Keep(snapshotID string, shape vm.Shape) {
	p.mu.Lock()
	p.want[snapshotID] = shape
	p.mu.Unlock()
	p.kick()
}

// Drop: see Keep.
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

// Take returns a shell: a ready one, or else one that is started now.
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
		go p.kill([]*Shell{s}) // it died waiting: only reap it
	}
}

// Close ends refilling and all waiting shells.
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

// poolRetry is the pause after a shell could not be started, so that a host out of memory is not
// hammered.
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

// watch puts another shell in the place of one that ends before anybody takes it, but not at once:
// what ended it may end the next one too.
func (p *Pool) watch(shape vm.Shape, s *Shell) {
	select {
	case <-s.taken:
		return
	case <-s.VMM.Done():
	}
	if !p.remove(shape, s) {
		return // it was taken, or ended by the pool
	}
	p.cfg.Log.Warn("a pooled VMM has ended", "id", s.ID, "reason", DescribeExit(s.VMM.Exit()))
	p.kill([]*Shell{s})
	select {
	case <-time.After(poolRetry):
		p.kick()
	case <-p.ctx.Done():
	}
}

// remove takes a shell out of the pool, and reports whether it was in there.
func (p *Pool) remove(shape vm.Shape, s *Shell) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.ready[shape], s)
	if i >= 0 {
		p.ready[shape] = slices.Delete(p.ready[shape], i, i+1)
	}
	return i >= 0
}

// missing returns a shape of which there are too few shells.
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

// Wanted returns the number of shells that are ready when the pool is full, what it keeps for a
// while not included.
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
