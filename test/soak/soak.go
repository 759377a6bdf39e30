// Package soak lets clients use a daemon at random while the daemon is killed, and VMMs, network
// and disks fail. It checks that no acknowledged sandbox, snapshot or file is lost.
//
// Every sandbox runs test/guest/torture, which can check that its memory and disk are undamaged. A
// client sets marks and writes files in its sandboxes, and knows the expected content of each of
// its sandboxes and snapshots. Every answer must be a success, or a documented error that a fault
// explains (answer.go). Any other answer is a finding. A seed determines the actions of the
// clients, but neither the timing of the clients nor the timing of the faults. test/integration
// uses this package. The test there starts the daemon, makes the snapshot from which clients fork,
// causes the faults, and compares the host's resources before and after the run.
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
// and its disk stalled. Exceeding it is a finding.
const stepLimit = 3 * time.Minute

// Config configures a run.
type Config struct {
	Daemon *client.Client
	Base   string     // snapshot in which torture is running; all other snapshots descend from it
	Size   guest.Size // memory and disk that torture writes
	Clients,
	Boxes, // maximum numbers of sandboxes and of snapshots that a client keeps
	Snapshots int
	Seed   uint64
	Faults *FaultLog
	Report *Report
}

// Soak is a run.
type Soak struct {
	cfg     Config
	base    points
	marks   atomic.Uint64 // the latest mark; each mark is used once
	names   atomic.Uint64
	gate    sync.RWMutex // read-locked during requests
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

// New returns a run. Its base is a snapshot taken at the given instant.
func New(cfg Config, at guest.Instant) *Soak {
	s := &Soak{cfg: cfg, base: points{{Instant: at}}}
	s.marks.Store(at.Mark)
	for n := range cfg.Clients {
		s.workers = append(s.workers, &worker{Soak: s, d: cfg.Daemon, rep: cfg.Report, faults: cfg.Faults, n: n,
			rng: rand.New(rand.NewPCG(cfg.Seed, uint64(n))), own: family{snapshots: map[string]points{}}})
	}
	return s
}

// Run lets all clients work until the given channel is closed. It returns when no request is in
// progress.
func (s *Soak) Run(stop <-chan struct{}) {
	var group sync.WaitGroup
	for _, w := range s.workers {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(w.rng.IntN(300)) * time.Millisecond): // a pause like a user's
				}
				s.gate.RLock()
				w.step()
				s.gate.RUnlock()
			}
		})
	}
	group.Wait()
}

// Still calls f while no client makes a request. It passes the ids of the acknowledged sandboxes
// (boxes) and the tags of the acknowledged snapshots (tags).
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

// Finish verifies all sandboxes and a child of every snapshot, and removes everything. Call it when
// all faults have ended.
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

// name returns a new, unique name.
func (w *worker) name() string { return fmt.Sprintf("c%d-%d", w.n, w.names.Add(1)) }
