package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// Recover takes over the sandboxes of an earlier daemon, and returns how many of them continue. It
// removes sandboxes that no client can use: no client has received their ids, or their VM has
// ended. It does not touch a sandbox whose state is unclear, see LeftAlone. Recover must be called
// once, before all other methods.
func (m *Manager) Recover() (int, error) {
	entries, err := os.ReadDir(m.cfg.RunDir)
	if err != nil {
		return 0, fmt.Errorf("recover sandboxes: %w", err)
	}
	// release is not called after an error, because then it is not known which snapshots are unused
	release := m.cfg.Store.HoldTransient()
	m.readoptAll(entries)
	data, err := os.ReadDir(m.cfg.DataDir)
	if err == nil {
		err = m.recoverAllData(data)
	}
	slices.SortFunc(m.left, func(a, b left) int { return strings.Compare(a.ID, b.ID) })
	if err != nil {
		return len(m.IDs()), fmt.Errorf("recover sandboxes: %w", err)
	}
	if len(m.left) == 0 { // if sandboxes were left alone, their forks must not count as finished
		ledger.ClearForks(m.cfg.RunDir, m.cfg.DataDir)
	}
	release(len(m.left) == 0)
	m.coolSuspended()
	return len(m.IDs()), nil
}

// LeftAlone returns the sandboxes that Recover did not touch.
func (m *Manager) LeftAlone() (list []LeftAlone) {
	for _, l := range m.left {
		select {
		case <-l.ended:
			l.PID, l.Reason = 0, "its VMM has ended since; what is left of it goes when the daemon is started again"
		default:
		}
		list = append(list, l.LeftAlone)
	}
	return list
}

// readoptAll takes over all VMs. Its parameter is the content of the run directory, in which each
// VM has a folder.
func (m *Manager) readoptAll(entries []os.DirEntry) {
	found := make(chan struct{}, vmpool.AtOnce)
	var group sync.WaitGroup
	for _, e := range entries {
		id := e.Name()
		if !vmpool.IsID(id) {
			continue
		}
		found <- struct{}{}
		group.Go(func() {
			s, err := m.readopt(id)
			<-found
			if err == nil {
				err = m.settleTakenOver(s) // concurrently, so that the waits for VMMs that do not answer overlap
			}
			if l := (*ledger.LostError)(nil); errors.As(err, &l) {
				m.cfg.Log.Warn("sandbox of an earlier daemon is lost", "sandbox", id, "reason", err)
			} else if err != nil {
				m.cfg.Log.Error("sandbox of an earlier daemon is left alone", "sandbox", id, "reason", err)
				l := left{LeftAlone: LeftAlone{ID: id, Reason: err.Error()}}
				if a := (*ledger.AloneError)(nil); errors.As(err, &a) {
					l.PID, l.ended = a.PID, a.Ended
				}
				m.leave(l)
			}
		})
	}
	group.Wait()
}

// leave adds a sandbox to the sandboxes that are left alone.
func (m *Manager) leave(l left) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left = append(m.left, l)
}

// recoverAllData calls recoverData for each sandbox that has no VM. It uses all CPUs, because a host can
// have 100,000 suspended sandboxes. Its parameter is the content of the data directory.
func (m *Manager) recoverAllData(entries []os.DirEntry) error {
	var ids []string
	for _, d := range entries {
		if id := d.Name(); vmpool.IsID(id) && !m.Has(id) {
			ids = append(ids, id)
		}
	}
	errs := make([]error, len(ids))
	gate.Each(runtime.NumCPU(), ids, func(i int, id string) { errs[i] = m.recoverData(id) })
	return errors.Join(errs...)
}

// recoverData handles the data directory of a sandbox that has no VM. It takes over a suspended
// sandbox whose fork was finished, or leaves the sandbox alone if that fails. In all other cases it
// removes the directory.
func (m *Manager) recoverData(id string) error {
	dir := filepath.Join(m.cfg.DataDir, id)
	r, err := ledger.FindSuspended(m.cfg.RunDir, dir)
	if errors.Is(err, os.ErrNotExist) {
		return os.RemoveAll(dir)
	}
	if err == nil { // after an error, it is unknown what the record contains
		err = m.recoverSuspended(id, r)
	}
	if err != nil {
		// Keep the files, because the sandbox's snapshot may be repaired.
		m.cfg.Log.Error("suspended sandbox cannot be taken over", "sandbox", id, "reason", err)
		m.leave(left{LeftAlone: LeftAlone{ID: id, Reason: err.Error()}})
	}
	return nil
}

// coolSuspended frees the RAM of suspended states. If a daemon is killed right after a suspension,
// the suspended state stays in RAM.
func (m *Manager) coolSuspended() {
	for _, info := range m.List() {
		if info.State == Suspended {
			m.cfg.Store.Cool(info.StateTag)
		}
	}
}

// readopt takes over one VM; settleTakenOver then makes it a running sandbox. There are three kinds
// of VMs that no client can use: VMs whose ids no client has received, VMs that have possibly not
// confirmed their identity, and VMs that a suspended state has replaced. In these cases, readopt
// kills the VM and returns a *ledger.LostError. Any other error means that readopt has changed
// nothing. A working VM is taken over even if something else is missing. For example, a VM without
// its snapshot continues to run.
func (m *Manager) readopt(id string) (*Sandbox, error) {
	dir := m.vmDir(id)
	vmm, err := m.cfg.VMMs.Attach(id, dir)
	if vmpool.IsShortage(err) {
		return nil, err
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, ledger.Lost("its process has ended or does not answer: %w", err)
	}
	v := m.newLiveVM("", &vmpool.Shell{ID: id, Dir: dir, VMM: vmm}, nil) // the record has the owner
	r, err := ledger.HandedOut(m.cfg.RunDir, dir, filepath.Join(m.cfg.DataDir, id), id)
	if m.cfg.Store.IsTorn(r.SnapshotID) {
		err = ledger.Lost("%w", &store.TornError{Tag: r.SnapshotTag})
	}
	if l := (*ledger.LostError)(nil); errors.As(err, &l) {
		m.killer.Kill(id, v.vmm)
		os.RemoveAll(dir)
		return nil, err
	}
	if err != nil {
		return nil, &ledger.AloneError{Reason: err, PID: vmm.PID(), Ended: vmm.Done()}
	}
	r.PID = vmm.PID()
	v.guest = m.cfg.Guest(r.Owner, filepath.Join(dir, vmmclient.VsockSocket))
	if err := r.AddSecrets(filepath.Join(m.cfg.DataDir, id)); err != nil {
		m.cfg.Log.Error("sandbox runs, but without its secrets", "sandbox", id, "error", err)
	}
	s := m.newSandbox(r)
	s.since.Forget()
	s.live = v
	v.link = m.cfg.Net.Adopt(id, r.Network, vmm, m.moved(id, v))
	vcpus := uint32(1) // the minimum, if the number is unknown
	if v.lease, err = m.cfg.Store.AcquireRunning(r.SnapshotTag, r.SnapshotID); err != nil {
		m.cfg.Log.Error("sandbox runs, but its snapshot cannot be used", "sandbox", id, "error", err)
	}
	if v.lease != nil {
		vcpus = v.lease.Manifest().Machine.VCPUs
	}
	m.admitted.TakeOver(vcpus)
	v.leave = m.admitted.Leaver(vcpus)
	if err := v.limit(&s.record); err != nil {
		m.cfg.Log.Error("the limits of a sandbox are not known to be in force", "sandbox", id, "error", err)
	}
	m.cfg.Store.HurryTakenOver(id, r.FrozenOwners(), vmm.Hurry)
	if last, err := ledger.ReadSuspended(s.data); err == nil {
		if s.unpin, err = m.cfg.Store.Pin(last.SnapshotTag); err != nil {
			m.cfg.Log.Error("sandbox runs, but its suspended state is lost", "sandbox", id, "error", err)
		}
	}
	m.follow(v, &r)
	return s, nil
}

// answersAtStart is how long a starting daemon waits for the answer of each VMM that it takes over.
// Without a limit, a compromised VMM could delay the start for ever. On a heavily overloaded host,
// some VMMs answer later and are asked again.
const answersAtStart = 10 * time.Second

// settleTakenOver finds out the state of a VM that was taken over, and marks the sandbox as running
// or paused. If the VMM does not answer in time, settleTakenOver marks the sandbox as silent, so
// that the next operation asks the VMM again.
func (m *Manager) settleTakenOver(s *Sandbox) error {
	v := s.live
	ctx, cancel := context.WithTimeout(context.Background(), answersAtStart)
	defer cancel()
	paused, err := s.settle(ctx, v)
	if err == nil {
		err = s.settlePause(ctx, v, paused)
	}
	if err == nil && !s.record.Paused { // the earlier daemon may have unmounted the volumes, to delete the sandbox
		err = mounts.InGuest(ctx, v.guest.Dial, s.record.Volumes)
	}
	if errors.Is(err, vmmclient.ErrGone) { // the VMM has ended since the sandbox was taken over
		m.killer.Kill(s.id, v.vmm)
		v.release()
		if s.unpin != nil {
			s.unpin()
		}
		os.RemoveAll(v.dir)
		return ledger.Lost("its process has ended: %w", err)
	}
	if err != nil {
		m.cfg.Log.Warn("sandbox does not answer", "sandbox", s.id, "error", err)
		s.mu.Lock()
		s.silent = true // makes the next operation ask again, see catchUp
		s.mu.Unlock()
	}
	s.record.ClearOrphans(s.data)
	meantToStand := s.record.Paused
	m.adopt(s, event.SandboxAdopted)
	if meantToStand {
		_ = s.transition("recover", Paused, nil) // fails if the VM has ended
	}
	return nil
}

// recoverSuspended takes over a suspended sandbox of an earlier daemon. The parameter r is the
// record in its suspended state.
func (m *Manager) recoverSuspended(id string, r ledger.Record) error {
	if r.ID != id {
		return fmt.Errorf("%s names sandbox %q", ledger.SuspendedFile, r.ID)
	}
	unpin, err := m.cfg.Store.Pin(r.SnapshotTag)
	if err != nil {
		return err
	}
	if !m.cfg.Store.Has(r.SnapshotTag, r.SnapshotID) {
		unpin() // deletes nothing, because Recover holds all transient snapshots
		return &store.ReplacedError{Tag: r.SnapshotTag}
	}
	ledger.ClearTops(filepath.Join(m.cfg.DataDir, id))
	s := m.newSandbox(r)
	s.mounts.Keep(r.Volumes) // the sandbox may have attached other volumes since, before its VM ended
	s.since.Forget()
	if err := s.transition("recover", Suspended, func() { s.unpin = unpin }); err != nil {
		return err
	}
	m.add(s, event.SandboxAdopted)
	return nil
}
