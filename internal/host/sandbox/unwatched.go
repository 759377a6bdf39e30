package sandbox

import (
	"context"
	"time"

	"github.com/forkd/forkd/internal/host/store"
)

// leaveUnwatched registers a branch that becomes complete in the background. The caller calls
// complete once, when the branch is complete or has failed.
func (m *Manager) leaveUnwatched(tag string) (complete func()) {
	done := make(chan struct{})
	m.mu.Lock()
	m.unwatched[tag] = done
	m.mu.Unlock()
	return func() {
		m.mu.Lock()
		if m.unwatched[tag] == done { // otherwise this branch has failed, and another one has its tag
			delete(m.unwatched, tag)
		}
		m.mu.Unlock()
		close(done)
	}
}

// acquireToFork leases a snapshot to fork. If a branch started with NoWait is about to complete the
// snapshot, it waits.
func (m *Manager) acquireToFork(ctx context.Context, tag string) (*store.Lease, error) {
	m.mu.Lock()
	done := m.unwatched[tag]
	m.mu.Unlock()
	if done != nil {
		limit := time.NewTimer(m.patience)
		defer limit.Stop()
		select {
		case <-done:
		case <-limit.C: // the store's error says that it is being made
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return m.cfg.Store.Acquire(tag)
}
