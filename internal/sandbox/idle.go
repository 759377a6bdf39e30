package sandbox

import (
	"context"
	"errors"
	"sync"
	"time"
)

// minIdle is the shortest idle timeout: suspending takes a good part of a second on a slow disk.
const minIdle = time.Second

// usage knows whether a sandbox is being used. The zero value is of one that is never suspended for being idle.
type usage struct {
	timeout time.Duration

	mu    sync.Mutex
	busy  int       // requests
	used  time.Time // when the last one ended
	timer *time.Timer
}

// watchUsage suspends s when it has been idle for its timeout.
func (m *Manager) watchUsage(s *Sandbox) *usage {
	u := &usage{timeout: s.record.IdleTimeout, used: time.Now()}
	if u.timeout > 0 {
		u.timer = time.AfterFunc(u.timeout, func() { m.suspendIdle(s) })
	}
	return u
}

// begin counts a request and returns how to end it.
func (u *usage) begin() (end func()) {
	if u.timeout == 0 {
		return func() {}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.busy++
	u.timer.Stop()
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.busy--
		u.used = time.Now()
		if u.busy == 0 {
			u.timer.Reset(u.timeout)
		}
	}
}

// idle reports whether no request is or has been served for the timeout.
func (u *usage) idle() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.busy == 0 && time.Since(u.used) >= u.timeout
}

// stop ends the watch.
func (u *usage) stop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.timer != nil {
		u.timer.Stop()
	}
}

func (m *Manager) suspendIdle(s *Sandbox) {
	ctx := context.Background()
	unlock, err := acquire(ctx, s.ops)
	if err != nil {
		return
	}
	defer unlock()
	if now, err := m.Get(s.record.ID); err != nil || now != s || s.Info().State != Running {
		return
	}
	if err = m.catchUp(s); err == nil {
		_, err = m.suspend(ctx, s, true)
	}
	if err != nil && !errors.Is(err, errBusy) {
		m.cfg.Log.Error("suspend an idle sandbox", "sandbox", s.record.ID, "error", err)
	}
	if err != nil {
		s.usage.begin()() // try again after another timeout
	}
}

// awake returns a sandbox, brought back first if it was suspended for being idle.
func (m *Manager) awake(ctx context.Context, id string) (*Sandbox, error) {
	s, err := m.Get(id)
	if err != nil {
		return nil, err
	}
	info := s.Info()
	if !info.Silent && (info.State == Running || info.State == Exited || info.IdleTimeout == 0) {
		return s, nil
	}
	s, unlock, err := m.lockAwake(ctx, id) // it may be on its way to being suspended
	if err != nil {
		return nil, err
	}
	unlock()
	return s, nil
}

// lockAwake is lockSandbox of a sandbox that is brought back first if it was suspended for being idle. The operation
// counts as a request.
func (m *Manager) lockAwake(ctx context.Context, id string) (*Sandbox, func(), error) {
	s, unlock, err := m.lockSandbox(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	if s.Info().State == Suspended && s.record.AutoResume {
		if s, err = m.bringBack(ctx, s); err != nil {
			unlock()
			return nil, nil, err
		}
	}
	end := s.usage.begin()
	return s, func() { end(); unlock() }, nil
}
