package sandbox

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/state"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/host/writers"
)

func (m *Manager) newLiveVM(owner string, shell *vmpool.Shell, lease *store.Lease) *liveVM {
	v := &liveVM{dir: shell.Dir, vmm: shell.VMM, lease: lease}
	v.guest = m.cfg.Guest(owner, filepath.Join(shell.Dir, vmmclient.VsockSocket))
	v.calls, v.cut = context.WithCancelCause(context.Background())
	return v
}

// release releases everything that the VM has, except its process.
func (v *liveVM) release() {
	v.link.Close()
	if v.lease != nil {
		v.lease.Release()
	}
	cleanup.Call(v.below, v.onto)
	if v.leave != nil {
		v.leave()
	}
}

// exitDelay is how long a VMM may take to exit after it has closed its connection.
const exitDelay = 2 * time.Second

// explain returns the reason why an operation on a VM failed: the sandbox was deleted, or its VM
// ended. If neither is the case, explain returns err. It also returns err if the operation has
// killed the VM because of err (see refuseWriter). The parameter v is the VM that the sandbox had
// when the operation began, or nil.
func (s *Sandbox) explain(op string, v *liveVM, err error) error {
	if err == nil || v == nil || errors.As(err, new(*writers.Error)) {
		return err
	}
	if errors.Is(err, vmmclient.ErrGone) { // the VMM has closed the connection, so it is about to exit
		select {
		case <-v.vmm.Done():
		case <-time.After(exitDelay):
		}
	}
	if s.Info().State == Stopping {
		return &CutOffError{ID: s.id, Op: op, By: state.ByDelete}
	}
	select {
	case <-v.vmm.Done():
		return &StateError{ID: s.id, Op: op, State: Exited, Exit: v.vmm.Exit()}
	default:
		return err
	}
}

// answered returns err, which is the error of a request to the VMM of s. If the VMM has not
// answered the request, it is unknown whether the VM runs. In this case, answered marks s as
// silent, and the next operation first asks the VMM (see catchUp). A request that its caller has
// cancelled does not make s silent.
func (s *Sandbox) answered(err error) error {
	if errors.Is(err, vmmclient.ErrNoAnswer) && !errors.Is(err, context.Canceled) {
		s.mu.Lock()
		s.silent = true
		s.mu.Unlock()
	}
	return err
}

// stopVM and startVM pause and resume a VM of s. Each function continues if the client disconnects,
// but has a time limit.
func (s *Sandbox) stopVM(ctx context.Context, v *liveVM) error {
	return s.answered(v.vmm.Pause(context.WithoutCancel(ctx)))
}

func (s *Sandbox) startVM(ctx context.Context, v *liveVM) error {
	return s.answered(v.vmm.Resume(context.WithoutCancel(ctx)))
}

// withVM returns the record and the VM of a running or paused sandbox, for an operation that saves or
// replaces its memory and disk. In other states the error is a *StateError.
func (s *Sandbox) withVM(op string) (ledger.Record, *liveVM, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.state.HasVM() {
		return ledger.Record{}, nil, s.stateErrorLocked(op)
	}
	return s.record, s.live, nil
}

// running returns the VM of a running sandbox, and the context for requests to its guest. In other
// states the error is a *StateError.
func (s *Sandbox) running(op string) (*liveVM, context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != Running {
		return nil, nil, s.stateErrorLocked(op)
	}
	return s.live, s.live.calls, nil
}

// hasSuspension reports whether s has a suspended state, even if it runs.
func (s *Sandbox) hasSuspension() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unpin != nil
}

// leased returns the lease of the snapshot from which a VM of s runs. If the snapshot could not be
// used when the VM was taken over, the VM has no lease, and leased tries again to lease the
// snapshot.
func (m *Manager) leased(s *Sandbox, op string, v *liveVM) (*store.Lease, error) {
	if v.lease != nil {
		return v.lease, nil
	}
	lease, err := m.cfg.Store.AcquireVersion(s.record.SnapshotTag, s.record.SnapshotID)
	if err != nil {
		return nil, &failure.LeaseError{ID: s.id, Op: op, Tag: s.record.SnapshotTag, Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == Stopping { // everything that s has is being released
		lease.Release()
		return nil, s.stateErrorLocked(op)
	}
	v.lease = lease
	return lease, nil
}

// pause records that the VM of s is paused, and then pauses it. If it returns an error, the VM
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
		_ = s.transition("pause", Running, nil) // fails if the VM has ended
	}
	return err
}

// unpause resumes the VM of a paused sandbox.
func (m *Manager) unpause(ctx context.Context, s *Sandbox, v *liveVM) error {
	if s.record.Paused { // false if s is paused because the disk is full
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
	m.background.Go(v.debts.Pay)
	return nil
}
