package sandbox

import (
	"context"
	"time"

	"github.com/forkd/forkd/internal/host/store"
)

// leaveUnwatched notes that a branch becomes complete in the background. The caller calls complete
// once when it is, or when it has failed.
func (m *Manager) leaveUnwatched(tag string) (complete func()) {
	done := make(chan struct{})
	m.mu.Lock()
	m.unwatched[tag] = done
	m.mu.Unlock()
	return func() {
		m.mu.Lock()
		if m.unwatched[tag] == done { // else this one has failed, and another branch has its tag
			delete(m.unwatched, tag)
		}
		m.mu.Unlock()
		close(done)
	}
}

// acquireToFork leases a snapshot to fork from. One that a branch without a waiting caller is about
// to complete is waited for.
func (m *Manager) acquireToFork(ctx context.Context, tag string) (*store.Lease, error) {
	m.mu.Lock()
	done := m.unwatched[tag]
	m.mu.Unlock()
	if done != nil {
		limit := time.NewTimer(m.patience)
		defer limit.Stop()
		select {
		case <-done:
		case <-limit.C: // the store says that it is being made
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return m.cfg.Store.Acquire(tag)
}
