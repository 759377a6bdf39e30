package sandbox

import (
	"context"
	"time"
)

const (
	// roomToResume is how many bytes must be free before a sandbox that waits for room on the disk
	// is resumed. With fewer free bytes, the sandbox would soon be paused again.
	roomToResume = 64 << 20

	// roomInterval is how often the free space is checked for a sandbox that waits for room.
	roomInterval = 2 * time.Second
)

// diskFull is called when the VM of s has paused itself because the host has no room for the
// guest's writes. It marks s as paused, and resumes it when there is room. It does not mark the
// record as paused: if the daemon exits, the next daemon resumes the VM, and the VM pauses itself
// again if there still is no room.
func (m *Manager) diskFull(s *Sandbox, v *liveVM) {
	ctx := context.Background()
	unlock, err := s.lock(ctx)
	if err != nil {
		return
	}
	defer unlock()
	st, err := v.vmm.Stats(ctx)
	if s.answered(err) != nil {
		return // the next operation resumes the VM, and the VM may report again
	}
	if !st.DiskFull {
		return // s has been resumed or rolled back since the VM reported
	}
	if s.live != v || s.transition("pause", Paused, func() { s.full = true }) != nil {
		return
	}
	m.cfg.Log.Warn("a sandbox is paused because the disk is full", "sandbox", s.id, "directory", s.data)
	m.background.Go(func() { m.waitForRoom(s, v) })
}

// waitForRoom resumes s when there is room. If another operation has changed the state of s,
// waitForRoom does nothing.
func (m *Manager) waitForRoom(s *Sandbox, v *liveVM) {
	tick := time.NewTicker(roomInterval)
	defer tick.Stop()
	for {
		select {
		case <-m.timed.Context().Done():
			return
		case <-v.vmm.Done():
			return
		case <-tick.C:
		}
		if !s.Info().DiskFull {
			return
		}
		if free, err := m.room(s.data); err != nil || free < roomToResume {
			continue
		}
		if err := m.resumeFull(s, v); err != nil {
			m.cfg.Log.Error("resume a sandbox that waited for room", "sandbox", s.id, "error", err)
			continue
		}
		return
	}
}

func (m *Manager) resumeFull(s *Sandbox, v *liveVM) error {
	unlock, err := s.lock(context.Background())
	if err != nil {
		return err
	}
	defer unlock()
	if s.live != v || !s.Info().DiskFull {
		return nil
	}
	m.cfg.Log.Info("a sandbox that waited for room runs on", "sandbox", s.id)
	return m.unpause(context.Background(), s, v)
}
