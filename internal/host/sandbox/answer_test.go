package sandbox

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// hungVMM is a VM whose process hangs while the field hung is set. A hanging process executes
// requests, but does not answer them.
type hungVMM struct {
	*vmfake.VMM
	hung bool
	slow bool // the VMM hangs from the next branch on
}

func (v *hungVMM) answer() error {
	if v.hung {
		return fmt.Errorf("forkd-vmm: %w: %w", vmmclient.ErrNoAnswer, context.DeadlineExceeded)
	}
	return nil
}

func (v *hungVMM) Pause(ctx context.Context) error {
	return errors.Join(v.VMM.Pause(ctx), v.answer())
}
func (v *hungVMM) Resume(ctx context.Context) error {
	return errors.Join(v.VMM.Resume(ctx), v.answer())
}
func (v *hungVMM) Stats(ctx context.Context) (vm.Stats, error) {
	stats, err := v.VMM.Stats(ctx)
	return stats, errors.Join(err, v.answer())
}

// paused reports whether the VM is paused, even while the VMM does not answer.
func (v *hungVMM) paused(t *testing.T) bool {
	t.Helper()
	stats, err := v.VMM.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stats.Paused
}

func (v *hungVMM) Branch(ctx context.Context, req vmmproto.Branch, f vmmclient.BranchFiles) (vmmproto.BranchResult,
	error) {
	v.hung = v.hung || v.slow
	result, err := v.VMM.Branch(ctx, req, f)
	return result, errors.Join(err, v.answer())
}

func (w *world) hung(t *testing.T) (*Sandbox, *hungVMM) {
	t.Helper()
	var v *hungVMM
	w.vmms.Wrap = func(f *vmfake.VMM) vmpool.VMM { v = &hungVMM{VMM: f}; return v }
	s, err := w.Get(w.source(t))
	if err != nil {
		t.Fatal(err)
	}
	w.vmms.Wrap = nil
	return s, v
}

// While the VMM of a sandbox hangs, the sandbox is shown as silent, and operations on it fail. When
// the VMM continues, it executes the requests of these operations. The daemon then undoes their
// effects.
func TestVMMThatHangs(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	s, v := w.hung(t)
	id := s.id
	v.hung = true
	if _, err := w.Pause(t.Context(), id); !errors.Is(err, vmmclient.ErrNoAnswer) {
		t.Fatalf("Pause = %v", err)
	}
	if info := s.Info(); !info.Silent || info.State != Running {
		t.Errorf("after a pause without an answer: %+v", info)
	}
	if _, err := w.Branch(t.Context(), id, BranchRequest{Mode: vm.BranchDiff}); !errors.Is(err, vmmclient.ErrNoAnswer) {
		t.Errorf("Branch = %v", err)
	}
	if err := w.Use(t.Context(), id, "use", nothing); !errors.Is(err, vmmclient.ErrNoAnswer) {
		t.Errorf("Eval = %v", err)
	}
	v.hung = false
	if err := w.Use(t.Context(), id, "use", nothing); err != nil {
		t.Errorf("Eval after its VMM answers again = %v", err)
	}
	if info := s.Info(); v.paused(t) || info.Silent || info.State != Running {
		t.Errorf("a pause that was reported as failed is in force: %+v, VM paused %v", info, v.paused(t))
	}
	if _, err := w.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	v.hung = true
	if _, err := w.Resume(t.Context(), id); !errors.Is(err, vmmclient.ErrNoAnswer) {
		t.Errorf("Resume = %v", err)
	}
	v.hung = false
	if info, err := w.Resume(t.Context(), id); err != nil || info.State != Running || v.paused(t) {
		t.Errorf("Resume = %+v, %v; VM paused %v", info, err, v.paused(t))
	}
	w.KillAll()
	w.checkClean(t)
}

// If the VMM has not answered a branch, it may or may not use the new disk top. The next branch
// finds out which top is in use.
func TestBranchWithoutAnAnswerIsSettledLater(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	s, v := w.hung(t)
	v.slow = true
	if _, err := w.Branch(t.Context(), s.id, BranchRequest{Mode: vm.BranchDiff}); !errors.Is(err, vmmclient.ErrNoAnswer) {
		t.Fatalf("Branch = %v", err)
	}
	v.hung, v.slow = false, false
	w.branch(t, s.id, "next", vm.BranchDiff)
	if _, disk := w.layers(t, "next"); disk != 3 {
		t.Errorf("%d disk layers, want those of the parent, of the branch without an answer, and of this one", disk)
	}
	w.KillAll()
	w.checkClean(t)
}

// A VMM may hang while another daemon takes it over. The other daemon must not kill this VMM: the
// VMM may still be executing a request of the earlier daemon.
func TestVMMThatHangsIsTakenOver(t *testing.T) {
	w := newWorld(t, 0)
	id := w.source(t)
	w.vmms.StatsErr = fmt.Errorf("forkd-vmm: %w: %w", vmmclient.ErrNoAnswer, context.DeadlineExceeded)
	if _, err := w.Branch(t.Context(), id, BranchRequest{Mode: vm.BranchDiff}); !errors.Is(err, vmmclient.ErrNoAnswer) {
		t.Fatalf("Branch = %v", err)
	}
	w.stop()
	w.start(t, 0)
	defer w.stop()
	if n, err := w.Recover(); n != 1 || err != nil {
		t.Fatalf("recovered %d sandboxes, %v", n, err)
	}
	if s, err := w.Get(id); err != nil || !s.Info().Silent || s.Info().State != Running {
		t.Errorf("%+v, %v", s.Info(), err)
	}
	w.vmms.StatsErr = nil
	w.branch(t, id, "b", vm.BranchDiff)
	w.KillAll()
	w.checkClean(t)
}

// Requests to a sandbox do not wait for a branch of the sandbox.
func TestRequestsDoNotWaitForABranch(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	s, v := w.torn(t)
	served := make(chan error, 1)
	v.branch = func() error { // during the branch, the record names the new top, and the sandbox's lock is held
		go func() {
			err := w.Use(t.Context(), s.id, "use", nothing)
			served <- err
		}()
		select {
		case err := <-served:
			return err
		case <-time.After(20 * time.Second):
			return errors.New("the request waits for the branch")
		}
	}
	w.branch(t, s.id, "b", vm.BranchLive)
	w.KillAll()
	w.checkClean(t)
}
