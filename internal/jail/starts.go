package jail

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// startTime is the maximum time that AwaitStarts waits. A start takes milliseconds, but longer on a
// host that swaps.
const startTime = 30 * time.Second

// starts is the set of process starts that are in progress.
type starts struct {
	mu sync.Mutex
	// +checklocks:mu
	running map[chan struct{}]struct{} // a channel is closed when its start has ended
}

// begin records a start until the returned function is called.
func (s *starts) begin() (ended func()) {
	c := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		s.running = make(map[chan struct{}]struct{})
	}
	s.running[c] = struct{}{}
	return func() {
		s.mu.Lock()
		delete(s.running, c)
		s.mu.Unlock()
		close(c)
	}
}

// await waits for the end of all starts that began before this call, but for at most the given
// time.
func (s *starts) await(most time.Duration) {
	s.mu.Lock()
	running := slices.Collect(maps.Keys(s.running))
	s.mu.Unlock()
	timeout := time.After(most)
	for _, c := range running {
		select {
		case <-c:
		case <-timeout:
			return
		}
	}
}

// AwaitStarts waits for the end of all starts that began before this call, but for at most 30
// seconds. Until a new process executes its program, it has copies of all of the caller's
// descriptors.
func (s *Starter) AwaitStarts() {
	if s != nil {
		s.starts.await(startTime)
	}
}
