// Package soak lets clients do at random what users do, to a daemon that is killed, and whose VMMs,
// network and disks fail, and finds out whether anything that was acknowledged got lost.
//
// Every sandbox runs test/guest/torture, which knows whether it is whole; its client gives it marks
// and files and knows what it must hold, as well as every snapshot. Every answer is either a
// success, or an error that is documented and that a fault explains (answer.go); anything else is a
// finding. What the clients do follows from a seed; when, and when faults meet them, does not.
// Faults are made by who uses this package (test/integration), as is the comparison of what the
// host holds before and after. It needs a snapshot to fork from, and knows nothing of how the
// daemon is started.
package soak

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/test/torture/guest"
)

// stepLimit bounds every request and every wait. It is long because an emulated host may be busy
// and its disk stalled; reaching it is a finding.
const stepLimit = 3 * time.Minute

// Config is what a run works with.
type Config struct {
	Daemon *client.Client
	Base   string     // the snapshot that everything descends from: torture runs in it
	Size   guest.Size // of torture
	Clients,
	Boxes, // sandboxes that a client keeps at most, and snapshots
	Snapshots int
	Seed   uint64
	Faults *FaultLog
	Report *Report
}

// Soak is a run.
type Soak struct {
	cfg     Config
	base    points
	marks   atomic.Uint64 // a mark is never given twice
	names   atomic.Uint64
	gate    sync.RWMutex // read-held by whoever makes requests
	workers []*worker
}

// worker is one client.
type worker struct {
	*Soak
	d      *client.Client
	rep    *Report
	faults *FaultLog
	rng    *rand.Rand
	n      int
	own    family
}

// New returns a run whose base holds the instant at.
func New(cfg Config, at guest.Instant) *Soak {
	s := &Soak{cfg: cfg, base: points{{Instant: at}}}
	s.marks.Store(at.Mark)
	for n := range cfg.Clients {
		s.workers = append(s.workers, &worker{Soak: s, d: cfg.Daemon, rep: cfg.Report, faults: cfg.Faults, n: n,
			rng: rand.New(rand.NewPCG(cfg.Seed, uint64(n))), own: family{snapshots: map[string]points{}}})
	}
	return s
}

// Run lets all clients work until stop is closed, and returns when none of them makes a request.
func (s *Soak) Run(stop <-chan struct{}) {
	var group sync.WaitGroup
	for _, w := range s.workers {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(w.rng.IntN(300)) * time.Millisecond): // as users do
				}
				s.gate.RLock()
				w.step()
				s.gate.RUnlock()
			}
		})
	}
	group.Wait()
}

// Still runs f while no client makes a request. It is told what they were acknowledged: the ids of
// sandboxes and the tags of snapshots.
func (s *Soak) Still(f func(boxes, tags map[string]bool)) {
	s.gate.Lock()
	defer s.gate.Unlock()
	boxes, tags := map[string]bool{}, map[string]bool{}
	for _, w := range s.workers {
		for _, b := range w.own.boxes {
			boxes[b.id] = true
		}
		for tag := range w.own.snapshots {
			tags[tag] = true
		}
	}
	f(boxes, tags)
}

// Finish verifies all sandboxes and a child of every snapshot, and removes everything. No fault may
// be there any more.
func (s *Soak) Finish() {
	for _, w := range s.workers {
		for len(w.own.boxes) > 0 {
			b := w.own.boxes[0]
			if w.settle(b, running, paused, suspended) && w.wake(b) {
				w.verify(b)
			}
			w.kill(b)
		}
		for _, tag := range w.own.tags() {
			for _, b := range w.fork(tag, w.own.snapshots[tag], 1) {
				w.kill(b)
			}
			w.removeSnapshot(tag, true)
		}
	}
}

// name returns a name that nothing had before.
func (w *worker) name() string { return fmt.Sprintf("c%d-%d", w.n, w.names.Add(1)) }
