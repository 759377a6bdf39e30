package sandbox

import (
	"context"
	"slices"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// Attach mounts another volume in a running sandbox. From then on, the volume is like a volume that
// the sandbox has mounted since its fork. After an error the sandbox has its former volumes. The
// errors are those of mounts.Live.
func (m *Manager) Attach(ctx context.Context, id string, mount mounts.Mount) (Info, error) {
	return m.changeVolumes(ctx, id, "attach a volume to", func(wait context.Context, l *mounts.Live,
		parent *snapshot.Manifest) error {
		if err := l.CheckMore(ctx, mount, parent); err != nil {
			return err
		}
		return l.Attach(wait, mount)
	})
}

// Detach unmounts the given volume in a running sandbox. Another sandbox can then become the writer
// of this volume. After an error of the guest, the sandbox still has the volume.
func (m *Manager) Detach(ctx context.Context, id, volume string) (Info, error) {
	return m.changeVolumes(ctx, id, "detach a volume from", func(wait context.Context, l *mounts.Live,
		_ *snapshot.Manifest) error {
		return l.Detach(wait, volume)
	})
}

// changeVolumes passes the volumes of a running sandbox, and the snapshot that the sandbox runs
// from, to the given function. The function's context ends when the guest has had enough time.
func (m *Manager) changeVolumes(ctx context.Context, id, op string,
	change func(context.Context, *mounts.Live, *snapshot.Manifest) error) (Info, error) {
	return m.change(ctx, id, func(h *Held) error {
		if err := h.wake(ctx); err != nil {
			return err
		}
		s := h.s
		v, calls, err := s.running(op)
		if err != nil {
			return err
		}
		lease, err := m.leased(s, op, v)
		if err != nil {
			return err
		}
		wait, cancel := context.WithTimeout(ctx, m.cfg.Confirm)
		defer cancel()
		defer context.AfterFunc(calls, cancel)()
		wait, stop := vmpool.WhileAlive(wait, v.vmm)
		defer stop()
		save := func(list []mounts.Mount) error { return s.update(func(r *ledger.Record) { r.Volumes = list }) }
		settle := func() error {
			_, err := s.settle(context.Background(), v)
			if err != nil {
				s.mu.Lock()
				s.silent = true // the next operation tries again, see catchUp
				s.mu.Unlock()
			}
			return err
		}
		err = change(wait, &mounts.Live{Set: &s.mounts, VMM: v.vmm, Dial: v.guest.Dial, Mounts: s.record.Volumes,
			Save: save, Settle: settle}, lease.Manifest())
		if err != nil && s.Info().State == Stopping { // the deletion may have released the volumes first
			m.cfg.Volumes.ReleaseAll(s.id)
		}
		return s.explain(op, v, err)
	})
}

// fitVolumes makes the record of s agree with the volumes that a VM has after an interrupted Attach or
// Detach. The caller must hold s.ops.
func (s *Sandbox) fitVolumes(ctx context.Context, v *liveVM, filled uint32) error {
	list := s.record.Volumes
	kept, err := s.mounts.Fit(ctx, v.vmm, filled, list)
	if err != nil || slices.Equal(kept, list) {
		return s.answered(err)
	}
	return s.update(func(r *ledger.Record) { r.Volumes = kept })
}
