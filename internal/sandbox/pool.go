package sandbox

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// shell is a VMM process with a created VM that nothing runs in yet.
type shell struct {
	id  string
	vmm VMM
}

func (s *shell) alive() bool {
	select {
	case <-s.vmm.Done():
		return false
	default:
		return true
	}
}

// pool keeps size shells ready for every machine shape that was forked lately. It never makes a fork wait: take returns
// nothing if there is nothing, and refilling happens in the background, one shell at a time, while no fork is running.
type pool struct {
	size  int
	spawn func(context.Context, vmmproto.Machine) (*shell, error)
	log   *slog.Logger

	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	wake   chan struct{} // has room for one

	mu    sync.Mutex
	busy  int // forks that are running
	ready map[vmmproto.Machine][]*shell
	want  map[string]vmmproto.Machine // by ID of the hot snapshot
}

func newPool(size int, spawn func(context.Context, vmmproto.Machine) (*shell, error), log *slog.Logger) *pool {
	ctx, cancel := context.WithCancel(context.Background())
	p := &pool{
		size: size, spawn: spawn, log: log, ctx: ctx, cancel: cancel,
		done: make(chan struct{}), wake: make(chan struct{}, 1),
		ready: make(map[vmmproto.Machine][]*shell), want: make(map[string]vmmproto.Machine),
	}
	go p.run()
	return p
}

// begin and end bracket a fork: refilling would compete with it.
func (p *pool) begin() {
	p.mu.Lock()
	p.busy++
	p.mu.Unlock()
}

func (p *pool) end() {
	p.mu.Lock()
	p.busy--
	p.mu.Unlock()
	p.kick()
}

// keep starts to hold shells for a snapshot, drop stops it. Snapshots of one shape share shells.
func (p *pool) keep(snapshotID string, shape vmmproto.Machine) {
	p.mu.Lock()
	p.want[snapshotID] = shape
	p.mu.Unlock()
	p.kick()
}

func (p *pool) drop(snapshotID string) {
	p.mu.Lock()
	var victims []*shell
	shape := p.want[snapshotID]
	delete(p.want, snapshotID)
	if !p.wantedLocked(shape) {
		victims = p.ready[shape]
		delete(p.ready, shape)
	}
	p.mu.Unlock()
	p.kill(victims)
}

func (p *pool) wantedLocked(shape vmmproto.Machine) bool {
	for _, s := range p.want {
		if s == shape {
			return true
		}
	}
	return false
}

// take returns a ready shell, or nil.
func (p *pool) take(shape vmmproto.Machine) *shell {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		list := p.ready[shape]
		if len(list) == 0 {
			return nil
		}
		s := list[len(list)-1]
		p.ready[shape] = list[:len(list)-1]
		if s.alive() {
			return s
		}
		go p.kill([]*shell{s}) // it died waiting: only reap it
	}
}

// close ends refilling and all waiting shells.
func (p *pool) close() {
	p.cancel()
	<-p.done
	p.mu.Lock()
	var victims []*shell
	for _, list := range p.ready {
		victims = append(victims, list...)
	}
	clear(p.ready)
	p.mu.Unlock()
	p.kill(victims)
}

func (p *pool) kill(shells []*shell) {
	inParallel(len(shells), func(i int) {
		if err := shells[i].vmm.Kill(); err != nil {
			p.log.Warn("end a pooled VMM", "id", shells[i].id, "error", err)
		}
	})
}

func (p *pool) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// poolRetry is the pause after a shell could not be started, so that a host out of memory is not hammered.
const poolRetry = 5 * time.Second

func (p *pool) run() {
	defer close(p.done)
	for {
		shape, ok := p.missing()
		if !ok {
			select {
			case <-p.ctx.Done():
				return
			case <-p.wake:
			}
			continue
		}
		s, err := p.spawn(p.ctx, shape)
		if err != nil {
			if p.ctx.Err() != nil {
				return
			}
			p.log.Warn("refill the pool", "error", err)
			select {
			case <-p.ctx.Done():
				return
			case <-time.After(poolRetry):
			}
			continue
		}
		p.mu.Lock()
		wanted := p.wantedLocked(shape)
		if wanted {
			p.ready[shape] = append(p.ready[shape], s)
		}
		p.mu.Unlock()
		if !wanted {
			p.kill([]*shell{s})
		}
	}
}

// missing returns a shape of which there are too few shells.
func (p *pool) missing() (vmmproto.Machine, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy > 0 || p.ctx.Err() != nil {
		return vmmproto.Machine{}, false
	}
	for _, shape := range p.want {
		if len(p.ready[shape]) < p.size {
			return shape, true
		}
	}
	return vmmproto.Machine{}, false
}

// counts returns the number of ready shells.
func (p *pool) counts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, list := range p.ready {
		n += len(list)
	}
	return n
}
