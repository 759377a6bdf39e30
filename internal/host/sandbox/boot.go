package sandbox

import (
	"context"
	"errors"

	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
)

// Boot boots a parent from a disk-only snapshot, and saves the parent as a transient snapshot. The
// first tag names the disk-only snapshot, and the second tag names the new snapshot.
type Boot func(ctx context.Context, from, to string) error

// SetBoot sets the function that boots parents. Without it, disk-only snapshots cannot be forked.
//
// Preconditions: no request has been made yet.
func (m *Manager) SetBoot(boot Boot) { m.boot = boot }

// booted returns the tag of a snapshot with memory. A fork of the given tag starts from this
// snapshot. If the snapshot with the given tag has memory, booted returns the given tag. Otherwise
// booted checks that there is room for n children, boots a parent from the disk, and returns the
// parent's tag. The returned snapshot exists at least until release is called. A parent's snapshot
// is deleted when no sandbox runs from it any more.
func (m *Manager) booted(ctx context.Context, tag string, n int) (_ string, release func(), err error) {
	if err := m.unwatched.Wait(ctx, tag); err != nil {
		return "", nil, err
	}
	lease, err := m.cfg.Store.AcquireFork(tag)
	if none := (*store.DiskOnlyError)(nil); !errors.As(err, &none) || m.boot == nil {
		if err != nil {
			return "", nil, err
		}
		return tag, lease.Release, nil
	}
	// Check the parent's snapshot too, because the host may have less room now.
	if err := m.checkRoom(ctx, tag, n); err != nil {
		return "", nil, err
	}
	to := owner.BootTag(ctx)
	if err := m.boot(ctx, tag, to); err != nil {
		return "", nil, err
	}
	release, err = m.cfg.Store.Pin(to)
	return to, release, err
}

// checkRoom returns an error if n children of a snapshot cannot be started.
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
