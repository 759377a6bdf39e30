package vmpool

import (
	"time"

	"github.com/forkd/forkd/internal/proto/vm"
)

// defaultLasts is how long demand is remembered. It is long enough for clients that fork the same
// number of children every few minutes. It is short enough that the memory of unused shells, about
// 1 MiB each, is soon freed.
const defaultLasts = 5 * time.Minute

// demand counts how many shells of a shape are taken before the pool is full again. One fork of
// many children may take them, or many forks in a short time.
type demand struct {
	burst int       // number of shells taken since the pool was last full
	most  int       // largest recent burst
	until time.Time // time at which the value of most expires
}

// takenLocked counts a shell that a fork takes or, if the pool has none ready, would have taken.
//
// +checklocks:p.mu
func (p *Pool) takenLocked(shape vm.Shape) {
	if p.cfg.Size == 0 {
		return
	}
	d := p.demand[shape]
	if d == nil {
		d = &demand{}
		p.demand[shape] = d
	}
	d.burst++
	if d.burst >= d.most || !time.Now().Before(d.until) {
		d.most, d.until = d.burst, time.Now().Add(p.cfg.Lasts)
	}
}

// fullLocked records that the pool is full for a shape. This ends the burst.
//
// +checklocks:p.mu
func (p *Pool) fullLocked(shape vm.Shape) {
	if d := p.demand[shape]; d != nil {
		d.burst = 0
	}
}

// targetLocked returns how many shells of a shape should be ready.
//
// +checklocks:p.mu
func (p *Pool) targetLocked(shape vm.Shape) int {
	d := p.demand[shape]
	if d == nil || !time.Now().Before(d.until) {
		return p.cfg.Size
	}
	return max(p.cfg.Size, min(d.most, p.cfg.Most))
}

// Forget drops all demand. The pool then kills the shells above the configured size.
func (p *Pool) Forget() {
	p.mu.Lock()
	clear(p.demand)
	p.mu.Unlock()
	p.kick()
}

// surplus removes the shells above the target from the pool and returns them.
func (p *Pool) surplus() (victims []*Shell) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for shape, list := range p.ready {
		for most := p.targetLocked(shape); len(list) > most; list = list[:len(list)-1] {
			last := list[len(list)-1]
			close(last.taken)
			victims = append(victims, last)
		}
		p.ready[shape] = list
	}
	return victims
}

// forgotten returns a timer for the next time at which demand expires and shells become surplus. It
// returns nil if there is no such time.
func (p *Pool) forgotten() <-chan time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	var first time.Time
	for shape, list := range p.ready {
		d := p.demand[shape]
		if d != nil && len(list) > p.cfg.Size && (first.IsZero() || d.until.Before(first)) {
			first = d.until
		}
	}
	if first.IsZero() {
		return nil
	}
	return time.After(time.Until(first))
}
