package vmpool

import (
	"time"

	"github.com/forkd/forkd/internal/proto/vm"
)

// defaultLasts is long enough for whoever forks the same number every few minutes, and short enough
// for memory that nobody uses: a shell has about 1 MiB.
const defaultLasts = 5 * time.Minute

// demand is how many shells of a shape forks take: one fork of many children, or many forks that
// leave no time to refill the pool.
type demand struct {
	burst int       // taken since the pool was full
	most  int       // the largest burst lately
	until time.Time // when that is forgotten
}

// takenLocked counts a shell that a fork takes, whether or not it was ready.
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

// fullLocked ends the burst of a shape.
//
// +checklocks:p.mu
func (p *Pool) fullLocked(shape vm.Shape) {
	if d := p.demand[shape]; d != nil {
		d.burst = 0
	}
}

// targetLocked is how many shells of a shape are to be ready.
//
// +checklocks:p.mu
func (p *Pool) targetLocked(shape vm.Shape) int {
	d := p.demand[shape]
	if d == nil || !time.Now().Before(d.until) {
		return p.cfg.Size
	}
	return max(p.cfg.Size, min(d.most, p.cfg.Most))
}

// Forget has the pool end the shells that it was to keep for a while only.
func (p *Pool) Forget() {
	p.mu.Lock()
	clear(p.demand)
	p.mu.Unlock()
	p.kick()
}

// surplus takes the shells out of the pool that it was to keep for a while only.
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

// forgotten is ready when there is a surplus for want of demand; nil if there will be none.
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
