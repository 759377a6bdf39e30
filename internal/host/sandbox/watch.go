package sandbox

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/host/byage"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/idle"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/loglimit"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
)

// newSandbox returns a sandbox in the state starting.
func (m *Manager) newSandbox(r ledger.Record) *Sandbox {
	s := &Sandbox{id: r.ID, data: filepath.Join(m.cfg.DataDir, r.ID), ops: make(chan struct{}, 1), events: m.cfg.Events,
		record: r}
	s.mounts = mounts.Set{Store: m.cfg.Volumes, Sandbox: s.id, Owner: r.Owner, Dir: s.data}
	s.usage = idle.New(r.IdleTimeout, func() { m.timed.Do(func() { m.suspendIdle(s) }) })
	return s
}

// add registers a sandbox and starts its expiry. It emits an event of the given kind before any
// other event of the sandbox.
func (m *Manager) add(s *Sandbox, kind event.Kind) {
	e := s.event(kind, "")
	m.mu.Lock()
	s.events.Emit(e)
	m.sandboxes.Add(byage.Place{Created: s.record.Created, ID: s.id}, s)
	m.mu.Unlock()
	m.setTimer(s)
}

// adopt marks a sandbox as running when its agent has confirmed its identity, and watches its VM.
func (m *Manager) adopt(s *Sandbox, kind event.Kind) {
	v := s.live
	_ = s.transition("start", Running, nil) // cannot fail, because no other goroutine has s yet
	s.usage.Touch()
	m.add(s, kind)
	m.watchers.Go(func() { m.watch(s, v) })
}

// stallPause is how long further messages of a VMM about a full disk are ignored. Each message
// makes the daemon send requests to the VMM, and a compromised VMM could send one message after
// another.
const stallPause = time.Second

// watch waits for the VM of s to end. If no operation of the daemon has ended the VM, watch handles
// the end of the VM.
func (m *Manager) watch(s *Sandbox, v *liveVM) {
	stalled, lost := v.vmm.Stalled(), v.lease.Arrival().Lost()
	var again <-chan time.Time // receives a value when messages about a full disk are read again
	for conns := v.vmm.Conns(); ; {
		select {
		case <-m.timed.Context().Done():
			return
		case c, ok := <-conns:
			if ok {
				c.Conn.Close() // the host has no server to which a guest may connect
			} else {
				conns = nil // the VM has ended; Done reports this too
			}
			continue
		case <-stalled:
			m.diskFull(s, v)
			stalled, again = nil, time.After(stallPause)
			continue
		case <-again:
			stalled = v.vmm.Stalled()
			continue
		case <-lost: // the rest of the snapshot will never arrive, so the sandbox could only fail later
			m.killer.Kill(s.id, v.vmm)
			lost = nil
			continue
		case <-v.vmm.Done():
		}
		break
	}
	last, err := vmpool.Console(m.cfg.VMMs, v.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		m.cfg.Log.Warn("read the console of an ended VM", "sandbox", s.id, "error", err)
	}
	exit := v.lease.Arrival().Explain(v.vmm.Exit())
	if !s.exited(v, exit, last) {
		return // the sandbox is being deleted or was suspended
	}
	m.exits.Log(m.cfg.Log, slog.LevelInfo, "sandbox exited", "sandbox", s.id, "reason", exit.Reason.String(), "detail",
		loglimit.Cut(exit.Detail))
	m.cfg.Observer.SandboxExited(exit.Reason.String())
	unlock, err := s.lock(context.Background())
	if err != nil {
		return
	}
	defer unlock()
	if !s.has(v) {
		return // s was resumed, so v is already released and its directory belongs to another VM
	}
	m.killer.Kill(s.id, v.vmm)
	switch {
	case !s.hasSuspension():
		m.free(s)
		m.forgetExited(s.Info().Owner)
	case s.Info().State == Exited: // the sandbox has a suspended state from which it can be resumed
		ledger.ClearTops(s.data)
		v.release()
	}
}

// exited records that the VM v has ended. It returns false if s now has another VM, or no VM.
func (s *Sandbox) exited(v *liveVM, exit vm.Exit, last console.Text) bool {
	return s.has(v) && s.transition("exit", Exited, func() { s.exit, s.console, s.ended = exit, last, time.Now() }) == nil
}

// has reports whether v is the VM of s.
func (s *Sandbox) has(v *liveVM) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live == v
}
