package sandbox

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// liveVM is the VM of a sandbox that is not suspended.
type liveVM struct {
	dir   string // run directory
	vmm   vmpool.VMM
	guest Guest

	// Changed by rollback and rebase, under the lock of the sandbox.
	lease *store.Lease // of the snapshot that the VM runs from; nil if that could not be had, see leased
	// ends following the branch that it was rebased onto; nil: none, or that could not be had
	below func()
	onto  func()                  // likewise, of that which it may have been rebased onto
	calls context.Context         // of the requests to the guest; ends when the guest is taken from under them
	cut   context.CancelCauseFunc // of calls
	link  *netclient.Link         // to the network

	leave func() // gives up its place on the host; nil while it has none of its own
	debts debts

	kept error // that the VMM has kept a file which it was to close; under the operation lock of the sandbox
}

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
