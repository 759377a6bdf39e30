package sandbox

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/procmem"
	"github.com/forkd/forkd/internal/store"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// adopt makes a confirmed child a running sandbox and watches over it.
func (m *Manager) adopt(s *Sandbox) {
	s.free = sync.OnceFunc(func() {
		if s.data != "" {
			if err := os.RemoveAll(s.data); err != nil {
				m.cfg.Log.Warn("remove a disk top", "sandbox", s.record.ID, "error", err)
			}
		}
		s.mu.Lock()
		lease, unpin := s.lease, s.unpin
		s.unpin = nil
		s.mu.Unlock()
		lease.Release()
		if unpin != nil {
			unpin()
		}
	})
	s.transition(Running)
	s.usage = m.watchUsage(s)
	m.mu.Lock()
	m.sandboxes[s.record.ID] = s
	m.mu.Unlock()
	m.expire(s)
	m.watchers.Go(func() { m.watch(s) })
}

// expire deletes s when its time has come.
func (m *Manager) expire(s *Sandbox) {
	if !s.record.Expires.IsZero() {
		s.mu.Lock()
		s.expiry = time.AfterFunc(time.Until(s.record.Expires), func() { _ = m.Kill(s.record.ID) })
		s.mu.Unlock()
	}
}

// watch notices the end of a VM that nobody asked for.
func (m *Manager) watch(s *Sandbox) {
	for conns := s.vmm.Conns(); ; {
		select {
		case <-m.quit:
			return
		case c, ok := <-conns:
			if ok {
				c.Conn.Close() // nothing of a sandbox listens on the host
			} else {
				conns = nil // closed by the end of the VM, which Done reports
			}
			continue
		case <-s.vmm.Done():
		}
		break
	}
	exit := s.vmm.Exit()
	console, err := m.cfg.VMMs.Console(s.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		m.cfg.Log.Warn("read the console of an ended VM", "sandbox", s.record.ID, "error", err)
	}
	s.mu.Lock()
	s.exit, s.console = exit, console
	s.mu.Unlock()
	if !s.transition(Exited) {
		return // Kill is at work
	}
	m.cfg.Log.Info("sandbox exited", "sandbox", s.record.ID, "reason", exit.Reason.String(), "detail", exit.Detail)
	m.cfg.Observer.SandboxExited(exit.Reason.String())
	m.killVMM(s)
	unlock, err := acquire(context.Background(), s.ops)
	if err != nil {
		return
	}
	defer unlock()
	if now, err := m.Get(s.record.ID); err == nil && now == s && s.hasSuspension() {
		s.freeVM() // what is left of it can be resumed
		return
	}
	s.free()
}

// Kill ends a sandbox and removes everything of it. When it returns without an error nothing is left.
func (m *Manager) Kill(id string) error {
	s, err := m.Get(id)
	if err != nil {
		return err
	}
	if !s.transition(Stopping) {
		return &NotFoundError{ID: id} // another Kill has it
	}
	s.mu.Lock()
	if s.expiry != nil {
		s.expiry.Stop()
	}
	s.mu.Unlock()
	if s.vmm != nil {
		s.usage.stop()
		m.killVMM(s)
	}
	s.free()
	m.mu.Lock()
	delete(m.sandboxes, id)
	m.mu.Unlock()
	return nil
}

// KillAll ends all sandboxes.
func (m *Manager) KillAll() {
	all := m.List()
	inParallel(len(all), func(i int) {
		if err := m.Kill(all[i].ID); err != nil {
			m.cfg.Log.Info("end a sandbox", "sandbox", all[i].ID, "error", err)
		}
	})
}

// vmsAtOnce is how many VMs are ended or taken over at the same time. To end one takes the kernel a while, most of it
// for its memory; one that does not answer takes long to be taken over.
const vmsAtOnce = 16

// inParallel calls do for 0 to n-1, vmsAtOnce of them at a time, and returns when all have returned.
func inParallel(n int, do func(int)) {
	var group sync.WaitGroup
	places := make(chan struct{}, vmsAtOnce)
	for i := range n {
		places <- struct{}{}
		group.Go(func() {
			defer func() { <-places }()
			do(i)
		})
	}
	group.Wait()
}

// end undoes a child that was never handed out.
func (m *Manager) end(s *Sandbox) {
	m.killVMM(s)
	if s.data != "" {
		os.RemoveAll(s.data)
	}
	s.lease.Release()
}

// killVMM ends the process of s. An error is only logged: there is nothing a caller could do about a process that
// survives SIGKILL, and everything else must be freed all the same.
func (m *Manager) killVMM(s *Sandbox) {
	if err := s.vmm.Kill(); err != nil {
		m.cfg.Log.Error("end a VMM", "sandbox", s.record.ID, "pid", s.vmm.PID(), "error", err)
	}
}

// DeleteSnapshot removes a snapshot as store.Delete does, and the shells that waited for its forks.
func (m *Manager) DeleteSnapshot(tag string, mode store.DeleteMode) error {
	ids := make(map[string]string) // tag → ID, of what may go
	for _, info := range m.cfg.Store.List() {
		if d, err := m.cfg.Store.Detail(info.Tag); err == nil {
			ids[info.Tag] = d.ID
		}
	}
	gone, err := m.cfg.Store.Delete(tag, mode)
	for _, t := range gone {
		m.pool.drop(ids[t])
	}
	return err
}

// Close stops the manager. Sandboxes keep running for the next daemon, unless kill is set.
func (m *Manager) Close(kill bool) {
	if kill {
		m.KillAll()
	}
	close(m.quit)
	m.background.Wait()
	m.watchers.Wait()
	m.pool.close()
}

// Stats is what a sandbox costs.
type Stats struct {
	PID    int
	VMM    vmmproto.Stats
	Memory procmem.Memory
}

// Stats measures a running sandbox.
func (m *Manager) Stats(ctx context.Context, id string) (Stats, error) {
	s, err := m.Get(id)
	if err != nil {
		return Stats{}, err
	}
	if _, err := s.running("measure"); err != nil {
		return Stats{}, err
	}
	st := Stats{PID: s.vmm.PID()}
	if st.VMM, err = s.vmm.Stats(ctx); s.heard(err) != nil {
		return Stats{}, s.ended("measure", err)
	}
	s.mu.Lock()
	ram := s.lease.Manifest().Machine.MemoryBytes
	s.mu.Unlock()
	st.Memory, err = procmem.Of(st.PID, ram)
	return st, err
}

// PoolSize returns the number of VMM shells that wait for a fork.
func (m *Manager) PoolSize() int { return m.pool.counts() }

// Console returns the last output of a sandbox's serial console, also of an exited one.
func (m *Manager) Console(id string) ([]byte, error) {
	s, err := m.Get(id)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	state, console := s.state, s.console
	s.mu.Unlock()
	if state == Exited || s.vmm == nil {
		return console, nil
	}
	return m.cfg.VMMs.Console(s.dir)
}
