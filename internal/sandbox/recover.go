package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/vmm/vmmclient"
)

// Recover takes over the sandboxes of an earlier daemon and removes what cannot be taken over: VMs that were never
// handed out, whose process has ended, or whose snapshot is gone. It is called once, before anything else, and returns
// the number of sandboxes that live on.
func (m *Manager) Recover() (int, error) {
	dirs, err := os.ReadDir(m.cfg.RunDir)
	if err != nil {
		return 0, fmt.Errorf("recover sandboxes: %w", err)
	}
	release := m.holdTransient()
	defer release()
	var alive atomic.Int64
	inParallel(len(dirs), func(i int) { // a VMM that does not answer takes its time
		id := dirs[i].Name()
		if CheckID(id) != nil {
			return
		}
		if err := m.readopt(id); err != nil {
			m.cfg.Log.Warn("sandbox of an earlier daemon is lost", "sandbox", id, "reason", err)
			return
		}
		alive.Add(1)
	})
	n := int(alive.Load())
	tops, err := os.ReadDir(m.cfg.DataDir)
	if err != nil {
		return n, fmt.Errorf("recover sandboxes: %w", err)
	}
	for _, d := range tops {
		if _, err := os.Stat(filepath.Join(m.cfg.DataDir, d.Name(), suspendedName)); err == nil && !m.has(d.Name()) {
			if err := m.recoverSuspended(d.Name()); err != nil {
				// Its files stay: what is wrong with its snapshot may be put right.
				m.cfg.Log.Error("suspended sandbox cannot be taken over", "sandbox", d.Name(), "reason", err)
				continue
			}
			n++
			continue
		}
		if _, err := m.Get(d.Name()); err == nil || CheckID(d.Name()) != nil {
			continue
		}
		if err := os.RemoveAll(filepath.Join(m.cfg.DataDir, d.Name())); err != nil {
			return n, fmt.Errorf("recover sandboxes: %w", err)
		}
	}
	release()
	m.cfg.Store.DropUnused()
	m.coolSuspended()
	return n, m.loadWorkspaces()
}

// holdTransient keeps transient snapshots until all sandboxes that run from them have been taken over: one that is lost
// must not take along the snapshot of the others.
func (m *Manager) holdTransient() (release func()) {
	var unpins []func()
	for _, info := range m.cfg.Store.List() {
		if !info.Transient {
			continue
		}
		if unpin, err := m.cfg.Store.Pin(info.Tag); err == nil { // else it is going already
			unpins = append(unpins, unpin)
		}
	}
	return sync.OnceFunc(func() {
		for _, unpin := range unpins {
			unpin()
		}
	})
}

// coolSuspended frees the RAM of suspended states that a daemon left there which died right after suspending.
func (m *Manager) coolSuspended() {
	m.mu.Lock()
	var tags []string
	for _, s := range m.sandboxes {
		if s.vmm == nil {
			tags = append(tags, s.record.SnapshotTag)
		}
	}
	m.mu.Unlock()
	for _, tag := range tags {
		m.cfg.Store.Cool(tag)
	}
}

// readopt takes over one VM, or removes it and says why.
func (m *Manager) readopt(id string) error {
	var undo cleanup.Stack
	defer undo.Run()
	dir := m.vmDir(id)
	undo.Add(func() { os.RemoveAll(dir) })
	vmm, err := m.cfg.VMMs.Attach(id, dir)
	if err != nil {
		return fmt.Errorf("its process has ended or does not answer: %w", err)
	}
	s := &Sandbox{ops: make(chan struct{}, 1), dir: dir, data: filepath.Join(m.cfg.DataDir, id), vmm: vmm, guest: m.cfg.Guest(filepath.Join(dir, vmmclient.VsockSocket))}
	s.record.ID = id
	undo.Add(func() { m.killVMM(s) })
	if s.record, err = readRecord(dir); err != nil {
		return err
	}
	if s.record.ID != id {
		return fmt.Errorf("%s names sandbox %q", recordName, s.record.ID)
	}
	if s.lease, err = m.cfg.Store.Acquire(s.record.SnapshotTag); err != nil {
		return err
	}
	undo.Add(s.lease.Release)
	if have := s.lease.Manifest().ID; have != s.record.SnapshotID {
		return fmt.Errorf("snapshot %q was replaced by another", s.record.SnapshotTag)
	}
	last, err := readSuspension(s.data)
	switch {
	case err == nil && last.Suspends != s.record.Suspends:
		return errors.New("it had been suspended")
	case err == nil:
		if s.unpin, err = m.cfg.Store.Pin(last.SnapshotTag); err != nil {
			return err
		}
		undo.Add(s.unpin)
	case !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("read %s: %w", suspendedName, err)
	}
	if s.record.Restoring {
		return errors.New("it was being rolled back when its daemon ended, and may not have confirmed")
	}
	s.record.PID = vmm.PID()
	paused, err := m.settle(s)
	if err == nil {
		err = s.settlePause(paused)
	}
	if err != nil && !errors.Is(err, vmmclient.ErrNoAnswer) { // one that does not answer now is asked again, see catchUp
		return err
	}
	s.clearOrphans()
	undo.Release()
	m.adopt(s)
	if s.record.Paused {
		s.transition(Paused)
	}
	return nil
}

// clearOrphans removes disk tops that a daemon made or replaced and did not live to write down: they take space, and the
// name of a new one is that of the next.
func (s *Sandbox) clearOrphans() {
	keep := []string{s.record.Top, suspendedName}
	for _, f := range s.record.Frozen {
		keep = append(keep, f.Name)
	}
	if p := s.record.Pending; p != nil {
		keep = append(keep, p.Name)
	}
	entries, _ := os.ReadDir(s.data) // a sandbox without a disk has none
	for _, e := range entries {
		if !slices.Contains(keep, e.Name()) {
			os.Remove(filepath.Join(s.data, e.Name()))
		}
	}
}

// has reports whether a sandbox is known.
func (m *Manager) has(id string) bool {
	_, err := m.Get(id)
	return err == nil
}

func readRecord(dir string) (record, error) {
	var r record
	p, err := os.ReadFile(filepath.Join(dir, recordName))
	if os.IsNotExist(err) {
		return r, fmt.Errorf("it was never handed out")
	}
	if err == nil {
		err = json.Unmarshal(p, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read sandbox record: %w", err)
	}
	return r, nil
}
