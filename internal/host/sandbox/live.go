package sandbox

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
)

func (m *Manager) newLiveVM(shell *vmpool.Shell, lease *store.Lease) *liveVM {
	v := &liveVM{dir: shell.Dir, vmm: shell.VMM, lease: lease}
	v.guest = m.cfg.Guest(filepath.Join(shell.Dir, vmmclient.VsockSocket))
	v.calls, v.cut = context.WithCancelCause(context.Background())
	return v
}

// release gives back what the VM had besides its process.
func (v *liveVM) release() {
	v.link.Close()
	if v.lease != nil {
		v.lease.Release()
	}
	callAll(v.below, v.onto)
	if v.leave != nil {
		v.leave()
	}
}

// callAll calls those functions that there are.
func callAll(list ...func()) {
	for _, f := range list {
		if f != nil {
			f()
		}
	}
}

// kill ends the process of a VM. An error is only logged: there is nothing a caller could do about
// a process that survives SIGKILL, and everything else must be freed all the same.
func (m *Manager) kill(id string, v *liveVM) {
	if err := v.vmm.Kill(); err != nil {
		m.cfg.Log.Error("end a VMM", "sandbox", id, "pid", v.vmm.PID(), "error", err)
	}
}

// exitDelay is how long it may take until the end of a VM is known, after a connection to its agent
// or VMM has broken because of it.
const exitDelay = 2 * time.Second

// explain says what happened to the sandbox where an operation on its VM failed because of that: it
// was deleted, or its VM ended. Other errors stay as they are. v is the VM that the operation began
// with, if it had one.
func (s *Sandbox) explain(op string, v *liveVM, err error) error {
	if err == nil || v == nil {
		return err
	}
	if errors.Is(err, vmmclient.ErrGone) { // its process is about to end
		select {
		case <-v.vmm.Done():
		case <-time.After(exitDelay):
		}
	}
	if s.Info().State == Stopping {
		return &CutOffError{ID: s.id, Op: op, By: byDelete}
	}
	select {
	case <-v.vmm.Done():
		return &StateError{ID: s.id, Op: op, State: Exited, Exit: v.vmm.Exit()}
	default:
		return err
	}
}

// answered passes on the outcome of a request to the VMM of s. After one without an answer nobody
// knows whether the VM stands still or runs: s is marked as silent, and the next operation asks
// before it does anything (see catchUp). A question that its caller gave up says nothing about the
// VMM.
func (s *Sandbox) answered(err error) error {
	if errors.Is(err, vmmclient.ErrNoAnswer) && !errors.Is(err, context.Canceled) {
		s.mu.Lock()
		s.silent = true
		s.mu.Unlock()
	}
	return err
}

// stopVM and startVM pause and resume a VM of s. Who asked for it may have gone: it is done all the
// same, in the time that the VMM is given.
func (s *Sandbox) stopVM(ctx context.Context, v *liveVM) error {
	return s.answered(v.vmm.Pause(context.WithoutCancel(ctx)))
}

func (s *Sandbox) startVM(ctx context.Context, v *liveVM) error {
	return s.answered(v.vmm.Resume(context.WithoutCancel(ctx)))
}

// withVM returns the record and the VM of a sandbox that runs or is paused, or a *StateError.
func (s *Sandbox) withVM(op string) (ledger.Record, *liveVM, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.state.hasVM() {
		return ledger.Record{}, nil, s.stateErrorLocked(op)
	}
	return s.record, s.live, nil
}

// running returns the VM of a running sandbox and the context of requests to its guest, or a
// *StateError.
func (s *Sandbox) running(op string) (*liveVM, context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != Running {
		return nil, nil, s.stateErrorLocked(op)
	}
	return s.live, s.live.calls, nil
}

// hasSuspension reports whether there is an earlier suspended state of s.
func (s *Sandbox) hasSuspension() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unpin != nil
}

// leased returns the lease of the snapshot that a VM of s runs from. A VM that was taken over when
// its snapshot could not be used runs without one: it is tried again here.
func (m *Manager) leased(s *Sandbox, op string, v *liveVM) (*store.Lease, error) {
	if v.lease != nil {
		return v.lease, nil
	}
	lease, err := m.acquire(s.record)
	if err != nil {
		return nil, &LeaseError{ID: s.id, Op: op, Tag: s.record.SnapshotTag, Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == Stopping { // what it had is being given back
		lease.Release()
		return nil, s.stateErrorLocked(op)
	}
	v.lease = lease
	return lease, nil
}

// acquire leases the snapshot that a record names, and no other of that tag.
func (m *Manager) acquire(r ledger.Record) (*store.Lease, error) {
	lease, err := m.cfg.Store.Acquire(r.SnapshotTag)
	if err != nil {
		return nil, err
	}
	if lease.Manifest().ID != r.SnapshotID {
		lease.Release()
		return nil, &replacedError{r.SnapshotTag}
	}
	return lease, nil
}

// pause stops the VM of s, and writes down first that it is meant to stand still. After an error it
// runs.
func (s *Sandbox) pause(ctx context.Context, v *liveVM) error {
	if err := s.transition("pause", Paused, func() { s.full = false }); err != nil {
		return err
	}
	err := s.update(func(r *ledger.Record) { r.Paused = true })
	if err == nil {
		err = s.stopVM(ctx, v)
	}
	if err != nil {
		err = errors.Join(err, s.update(func(r *ledger.Record) { r.Paused = false }))
		_ = s.transition("pause", Running, nil) // refused where it has ended
	}
	return err
}

// unpause lets the VM of a paused s run again.
func (m *Manager) unpause(ctx context.Context, s *Sandbox, v *liveVM) error {
	if s.record.Paused { // not if it waits for room on the disk, which writing would take
		if err := s.update(func(r *ledger.Record) { r.Paused = false }); err != nil {
			return err
		}
	}
	if err := s.startVM(ctx, v); err != nil {
		return err
	}
	if err := s.transition("resume", Running, func() { s.full = false }); err != nil {
		return err
	}
	s.usage.Touch()
	m.background.Go(v.debts.pay)
	return nil
}
