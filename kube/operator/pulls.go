package operator

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	forkd "github.com/forkd/forkd/client"
)

// Bounds on pulls.
const (
	maxPulls    = 8                // number of pulls at the same time
	pullTimeout = time.Hour        // of one pull
	pullPause   = 30 * time.Second // before a failed pull is tried again, unless the interval is shorter
)

// pullKey identifies the pull of a Snapshot to a node.
type pullKey struct {
	uid  types.UID
	node string
}

// pull is a pull that runs or has ended.
type pull struct {
	cancel context.CancelFunc
	done   bool
	err    error     // valid if done
	ended  time.Time // valid if done
}

// pulls runs pulls in the background. If the operator ends, the daemons cancel the pulls and keep
// the files that are complete. The next pull of the same snapshot then continues.
type pulls struct {
	places chan struct{}
	ended  func(uid types.UID) // called when a pull of a Snapshot has ended

	mu  sync.Mutex
	all map[pullKey]*pull
}

func newPulls(ended func(types.UID)) *pulls {
	return &pulls{places: make(chan struct{}, maxPulls), ended: ended, all: map[pullKey]*pull{}}
}

// get returns a copy of the pull with the key; false if there is none.
func (p *pulls) get(key pullKey) (pull, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if found := p.all[key]; found != nil {
		return *found, true
	}
	return pull{}, false
}

// forget drops a pull that has ended.
func (p *pulls) forget(key pullKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if found := p.all[key]; found != nil && found.done {
		delete(p.all, key)
	}
}

// stop cancels the pulls of a Snapshot, and reports whether all of them have ended.
func (p *pulls) stop(uid types.UID) (stopped bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	stopped = true
	for key, one := range p.all {
		switch {
		case key.uid != uid:
		case one.done:
			delete(p.all, key)
		default:
			one.cancel()
			stopped = false
		}
	}
	return stopped
}

// start starts a pull, unless one with the same key exists.
func (p *pulls) start(key pullKey, connect func(context.Context) (*forkd.Client, error), req forkd.PullRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[key] != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), pullTimeout)
	one := &pull{cancel: cancel}
	p.all[key] = one
	go func() {
		err := p.run(ctx, connect, req)
		cancel()
		p.mu.Lock()
		one.done, one.err, one.ended = true, err, time.Now()
		p.mu.Unlock()
		p.ended(key.uid)
	}()
}

func (p *pulls) run(ctx context.Context, connect func(context.Context) (*forkd.Client, error),
	req forkd.PullRequest) error {
	select {
	case p.places <- struct{}{}:
		defer func() { <-p.places }()
	case <-ctx.Done():
		return ctx.Err()
	}
	c, err := connect(ctx)
	if err != nil {
		return err
	}
	_, err = c.PullSnapshot(ctx, req, nil)
	return err
}
