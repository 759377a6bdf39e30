package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// Recover takes over the sandboxes of an earlier daemon and removes those that cannot be taken
// over: VMs that were never handed out, or whose process has ended. A sandbox whose state is
// unclear is left alone, see LeftAlone. Recover is called once, before any other method, and
// returns the number of sandboxes that live on.
func (m *Manager) Recover() (int, error) {
	entries, err := os.ReadDir(m.cfg.RunDir)
	if err != nil {
		return 0, fmt.Errorf("recover sandboxes: %w", err)
	}
	release := m.cfg.Store.HoldTransient() // kept held on failure, because then no snapshot is known to be unused
	m.readoptAll(entries)
	running := len(m.left)
	data, err := os.ReadDir(m.cfg.DataDir)
	if err != nil {
		return len(m.List()), fmt.Errorf("recover sandboxes: %w", err)
	}
	for _, d := range data {
		if id := d.Name(); vmpool.IsID(id) && !m.has(id) && !slices.ContainsFunc(m.left, func(l left) bool {
			return l.ID == id
		}) {
			if err := m.recoverData(id); err != nil {
				return len(m.List()), fmt.Errorf("recover sandboxes: %w", err)
			}
		}
	}
	if running == 0 { // otherwise the forks of running sandboxes would count as finished
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ledger.ForkPrefix) {
				os.Remove(filepath.Join(m.cfg.RunDir, e.Name()))
			}
		}
	}
	release(len(m.left) == 0)
	m.coolSuspended()
	return len(m.List()), nil
}

// LeftAlone returns the sandboxes that Recover left alone.
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

// readoptAll takes over the VMs that have a directory.
func (m *Manager) readoptAll(entries []os.DirEntry) {
	found := make(chan struct{}, vmpool.AtOnce)
	var group sync.WaitGroup
	var mu sync.Mutex
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
				err = m.settleTakenOver(s) // concurrently, so that VMMs that do not answer are waited for together
			}
			if l := (*ledger.LostError)(nil); errors.As(err, &l) {
				m.cfg.Log.Warn("sandbox of an earlier daemon is lost", "sandbox", id, "reason", err)
			} else if err != nil {
				m.cfg.Log.Error("sandbox of an earlier daemon is left alone", "sandbox", id, "reason", err)
				l := left{LeftAlone: LeftAlone{ID: id, Reason: err.Error()}}
				if a := (*aloneError)(nil); errors.As(err, &a) {
					l.PID, l.ended = a.vmm.PID(), a.vmm.Done()
				}
				mu.Lock()
				m.left = append(m.left, l)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	slices.SortFunc(m.left, func(a, b left) int { return strings.Compare(a.ID, b.ID) })
}

// recoverData takes over the sandbox of a data directory without a VM. It keeps a suspended
// sandbox, and removes the remains of other sandboxes.
func (m *Manager) recoverData(id string) error {
	dir := filepath.Join(m.cfg.DataDir, id)
	_, err := os.Stat(filepath.Join(dir, ledger.SuspendedFile))
	if errors.Is(err, os.ErrNotExist) {
		return os.RemoveAll(dir)
	}
	if err == nil { // otherwise its content is unknown
		err = m.recoverSuspended(id)
	}
	if err != nil {
		// Its files stay, because its snapshot may be repaired.
		m.cfg.Log.Error("suspended sandbox cannot be taken over", "sandbox", id, "reason", err)
		m.left = append(m.left, left{LeftAlone: LeftAlone{ID: id, Reason: err.Error()}})
	}
	return nil
}

// coolSuspended frees the RAM of suspended states that a daemon left there because it died right
// after a suspension.
func (m *Manager) coolSuspended() {
	for _, info := range m.List() {
		if info.State == Suspended {
			m.cfg.Store.Cool(info.StateTag)
		}
	}
}

// aloneError says why a living VM is left alone.
type aloneError struct {
	reason error
	vmm    vmpool.VMM
}

func (e *aloneError) Unwrap() error { return e.reason }

func (e *aloneError) Error() string {
	return fmt.Sprintf("%v: delete it with the forkd that started it, or end process %d", e.reason, e.vmm.PID())
}

// readopt takes over one VM, which settleTakenOver makes a running sandbox. If no client may use
// the VM any more, readopt kills it and returns a *ledger.LostError. Such a VM was never handed
// out, may not have confirmed, or has been replaced by a suspended state. After any other error
// nothing has been touched. A healthy VM is taken over whatever else is missing. Without its
// snapshot it runs as before.
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
	v := m.newLiveVM(&vmpool.Shell{ID: id, Dir: dir, VMM: vmm}, nil)
	r, err := ledger.HandedOut(m.cfg.RunDir, dir, filepath.Join(m.cfg.DataDir, id), id)
	if l := (*ledger.LostError)(nil); errors.As(err, &l) {
		m.kill(id, v)
		os.RemoveAll(dir)
		return nil, err
	}
	if err != nil {
		return nil, &aloneError{err, vmm}
	}
	r.PID = vmm.PID()
	if err := r.AddSecrets(filepath.Join(m.cfg.DataDir, id)); err != nil {
		m.cfg.Log.Error("sandbox runs, but without its secrets", "sandbox", id, "error", err)
	}
	s := m.newSandbox(r)
	s.since.Forget()
	s.live = v
	v.link = m.cfg.Net.Adopt(id, r.Network, m.giveTo(id, v))
	vcpus := uint32(1) // at least
	if v.lease, err = m.acquire(r); err != nil {
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
	m.cfg.Store.HurryTakenOver(id, vmm.Hurry)
	if last, err := ledger.ReadSuspended(s.data); err == nil {
		if s.unpin, err = m.cfg.Store.Pin(last.SnapshotTag); err != nil {
			m.cfg.Log.Error("sandbox runs, but its suspended state is lost", "sandbox", id, "error", err)
		}
	}
	m.follow(v, &r)
	return s, nil
}

// answersAtStart is how long a starting daemon waits for the VMMs that it takes over. On an
// overloaded host some are asked again later. A VMM that its guest has taken over could otherwise
// delay the start for any time.
const answersAtStart = 10 * time.Second

// settleTakenOver asks the VMM of a sandbox that was taken over for its state, and marks the
// sandbox as running or paused. A VMM that has not answered in time is marked as silent: the next
// operation asks it again.
func (m *Manager) settleTakenOver(s *Sandbox) error {
	v := s.live
	ctx, cancel := context.WithTimeout(context.Background(), answersAtStart)
	defer cancel()
	paused, err := s.settle(ctx, v)
	if err == nil {
		err = s.settlePause(ctx, v, paused)
	}
	if errors.Is(err, vmmclient.ErrGone) { // the VMM has ended too, after the daemon
		m.kill(s.id, v)
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
		s.silent = true // the next operation asks it again, see catchUp
		s.mu.Unlock()
	}
	s.record.ClearOrphans(s.data)
	meantToStand := s.record.Paused
	m.adopt(s, event.SandboxAdopted)
	if meantToStand {
		_ = s.transition("recover", Paused, nil) // refused if the VM has ended
	}
	return nil
}

// has reports whether a sandbox is known.
func (m *Manager) has(id string) bool {
	_, err := m.Get(id)
	return err == nil
}

// recoverSuspended takes over a suspended sandbox of an earlier daemon.
func (m *Manager) recoverSuspended(id string) error {
	data := filepath.Join(m.cfg.DataDir, id)
	r, err := ledger.ReadSuspended(data)
	if err != nil {
		return fmt.Errorf("read suspended sandbox: %w", err)
	}
	if r.ID != id {
		return fmt.Errorf("%s names sandbox %q", ledger.SuspendedFile, r.ID)
	}
	detail, err := m.cfg.Store.Detail(r.SnapshotTag)
	if err != nil {
		return err
	}
	if detail.ID != r.SnapshotID {
		return &replacedError{r.SnapshotTag}
	}
	unpin, err := m.cfg.Store.Pin(r.SnapshotTag)
	if err != nil {
		return err
	}
	ledger.ClearTops(data)
	s := m.newSandbox(r)
	s.since.Forget()
	if err := s.transition("recover", Suspended, func() { s.unpin = unpin }); err != nil {
		return err
	}
	m.add(s, event.SandboxAdopted)
	return nil
}
