package sandbox

import (
	"context"
	"time"
)

const (
	// roomToResume is how much must be free for a sandbox that waits for room, in bytes: with less
	// it would be paused again at once.
	roomToResume = 64 << 20

	// roomInterval is how often the room is looked at while a sandbox waits for it.
	roomInterval = 2 * time.Second
)

// diskFull makes s a paused sandbox after its VM has paused itself, because the host has no room
// for what the guest writes, and lets it run on when there is room again. It is not written down as
// paused: a daemon that comes later lets it run, and learns from the VM if there still is no room.
func (m *Manager) diskFull(s *Sandbox, v *liveVM) {
	ctx := context.Background()
	unlock, err := s.lock(ctx)
	if err != nil {
		return
	}
	defer unlock()
	st, err := v.vmm.Stats(ctx)
	if s.answered(err) != nil {
		return // the next operation asks again and lets it run, and it tells again
	}
	if !st.DiskFull {
		return // it has been resumed or rolled back since
	}
	if s.live != v || s.transition("pause", Paused, func() { s.full = true }) != nil {
		return
	}
	m.cfg.Log.Warn("a sandbox is paused because the disk is full", "sandbox", s.id, "directory", s.data)
	m.background.Go(func() { m.waitForRoom(s, v) })
}

// waitForRoom resumes s when there is room, unless somebody else has done something about it.
func (m *Manager) waitForRoom(s *Sandbox, v *liveVM) {
	tick := time.NewTicker(roomInterval)
	defer tick.Stop()
	for {
		select {
		case <-m.quit:
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
