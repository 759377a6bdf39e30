package sandbox

import (
	"context"
	"errors"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
)

// Boot boots a parent from a disk-only snapshot, and saves it as a transient snapshot with the tag
// to.
type Boot func(ctx context.Context, from, to string) error

// SetBoot gives the manager what boots parents. Without it disk-only snapshots cannot be forked.
//
// Preconditions: no request has been made yet.
func (m *Manager) SetBoot(boot Boot) { m.boot = boot }

// booted returns a snapshot with memory to fork from in the place of tag, held until release is
// called. That is tag itself, unless it is disk-only: then a parent is booted, which goes with the
// last sandbox that runs from it. n children are to be forked: there must be room for them before.
func (m *Manager) booted(ctx context.Context, tag string, n int) (_ string, release func(), err error) {
	lease, err := m.acquireToFork(ctx, tag)
	if none := (*store.DiskOnlyError)(nil); !errors.As(err, &none) || m.boot == nil {
		if err != nil {
			return "", nil, err
		}
		return tag, lease.Release, nil
	}
	if err := m.checkRoom(ctx, tag, n); err != nil { // again when there is something to fork from
		return "", nil, err
	}
	to := bootTag(owner.PrefixOf(ctx))
	if err := m.boot(ctx, tag, to); err != nil {
		return "", nil, err
	}
	release, err = m.cfg.Store.Pin(to)
	return to, release, err
}

// checkRoom reports whether n children of a snapshot could be started.
func (m *Manager) checkRoom(ctx context.Context, tag string, n int) error {
	d, err := m.cfg.Store.Detail(tag)
	if err != nil {
		return err
	}
	if err := m.admitted.Check(n, d.Machine.VCPUs); err != nil {
		return err
	}
	release, err := m.reserve(owner.Of(ctx), n)
	if err == nil {
		release()
	}
	return err
}

// bootTag returns a new tag within p for a parent that is booted for a fork.
func bootTag(p owner.Prefix) string {
	tag := "boot-" + snapshot.NewID()[:16]
	if p != "" {
		return p.Tags() + tag
	}
	return tag
}
