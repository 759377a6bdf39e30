package sandbox

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/forkd/forkd/internal/cleanup"
	durable "github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/writers"
)

// behind reports whether it is unknown what the VMM of s has done. This is the case if the VMM has
// not answered a request, or if the record names a disk top or a layer that the VMM may already
// use. While a branch is being made, the record always names such a top or layer. The caller must
// hold s.ops.
func (s *Sandbox) behind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.HasVM() && (s.silent || s.record.Pending != nil || s.record.Rebasing != nil)
}

// catchUp finds out the outcome of requests that the VMM of s has not answered. Then it makes the
// record, the state and the VM consistent. It returns an error if the VMM still does not answer.
// The caller must hold s.ops.
func (s *Sandbox) catchUp() error {
	if !s.behind() {
		return nil
	}
	ctx := context.Background()
	paused, err := s.settle(ctx, s.live)
	if err == nil {
		err = s.settlePause(ctx, s.live, paused)
	}
	if errors.Is(err, vmmclient.ErrGone) {
		return nil // the VMM has exited, and watch will change the state of s
	}
	if err != nil {
		return s.answered(err)
	}
	s.mu.Lock()
	s.silent = false
	meant := Running
	if s.record.Paused {
		meant = Paused
	}
	s.mu.Unlock()
	_ = s.transition("settle", meant, nil) // fails if s is already in that state, or if the VM has ended
	return nil
}

// settle finds out whether the VMM has switched to a new top, whether the VM's memory was rebased, and
// which volumes the VM has. It records these facts. It also returns whether the VM is paused.
func (s *Sandbox) settle(ctx context.Context, v *liveVM) (paused bool, err error) {
	stats, err := v.vmm.Stats(ctx)
	if s.answered(err) != nil {
		return false, fmt.Errorf("ask the VMM of sandbox %q for its layers: %w", s.id, err)
	}
	s.mu.Lock()
	pending := s.record.Pending
	s.mu.Unlock()
	if err := s.settleRebase(v, stats.Rebases); err != nil {
		return stats.Paused, err
	}
	if pending == nil {
		return stats.Paused, s.fitVolumes(ctx, v, stats.Volumes)
	}
	swapped := stats.TopSwaps > pending.Swaps
	if err := s.mounts.Settle(ctx, s.record.Volumes, pending.Volumes, swapped); err != nil {
		return stats.Paused, err
	}
	err = s.update(func(r *ledger.Record) {
		r.Pending = nil
		if swapped {
			r.Frozen = append(slices.Clone(r.Frozen), durable.FrozenTop{Name: r.Top, Owner: pending.Owner})
			r.Top = pending.Name
		}
	})
	if err == nil && !swapped {
		// The top is empty. If a VMM still has the top open, the deletion of the sandbox removes the top.
		_ = writers.Remove(filepath.Join(s.data, pending.Name), writers.Patience)
	}
	return stats.Paused, err
}

// settlePause pauses or resumes a VM, so that the VM's state agrees with the record. It is called
// for a VM that an earlier daemon left, or whose VMM did not answer. If the VM is paused and the
// record does not say so, the sandbox was about to be suspended, and the VM is resumed.
func (s *Sandbox) settlePause(ctx context.Context, v *liveVM, paused bool) error {
	switch {
	case paused && !s.record.Paused:
		return s.answered(v.vmm.Resume(ctx))
	case !paused && s.record.Paused:
		return s.update(func(r *ledger.Record) { r.Paused = false })
	}
	return nil
}

// swapLeases calls the function change, which changes the leases of s's VM or the field resuming of
// s. If s is being deleted, swapLeases returns an error instead, because the deletion releases
// these leases and this VM.
func (s *Sandbox) swapLeases(change func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == Stopping {
		return s.stateErrorLocked("use")
	}
	change()
	return nil
}

// settleRebase records whether a VM has begun the pending rebase. Its last parameter is the VM's
// count of rebases. Once a rebase has begun, the VM's memory is based on the branch.
func (s *Sandbox) settleRebase(v *liveVM, rebases uint64) error {
	s.mu.Lock()
	pending := s.record.Rebasing
	s.mu.Unlock()
	if pending == nil {
		return nil
	}
	begun := rebases > pending.Rebases
	err := s.update(func(r *ledger.Record) {
		r.Rebasing = nil
		if begun {
			r.Rebased = &pending.To
		}
	})
	if err != nil {
		return err
	}
	var done func()
	_ = s.swapLeases(func() { // an error means that all leases are being released
		if done = v.onto; begun {
			done, v.below = v.below, v.onto
		}
		v.onto = nil
	})
	cleanup.Call(done)
	return nil
}
