package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	durable "github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/vmmclient"
)

// behind reports whether the VMM of s has left requests unanswered, or whether the record announces
// a disk top or a layer that the VMM may be using. The caller holds s.ops. During a branch such an
// announcement is normal.
func (s *Sandbox) behind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.hasVM() && (s.silent || s.record.Pending != nil || s.record.Rebasing != nil)
}

// catchUp finds out the outcome of requests that the VMM of s did not answer, and brings record,
// state and VM in line. The caller holds s.ops. An error means that the VMM still does not answer.
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
		return nil // watch will change its state soon
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
	_ = s.transition("settle", meant, nil) // refused if s is in that state already, or has ended
	return nil
}

// settle finds out whether the VMM has taken a new top, and whether it was rebased, and records
// that. It also returns whether the VM is paused.
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
		return stats.Paused, nil
	}
	swapped := stats.TopSwaps > pending.Swaps
	err = s.update(func(r *ledger.Record) {
		r.Pending = nil
		if swapped {
			r.Frozen = append(slices.Clone(r.Frozen), durable.FrozenTop{Name: r.Top, Owner: pending.Owner})
			r.Top = pending.Name
		}
	})
	if err == nil && !swapped {
		os.Remove(filepath.Join(s.data, pending.Name)) // an empty file that is not in use
	}
	return stats.Paused, err
}

// settlePause puts a VM that an earlier daemon left, or that did not answer, into the state that
// the record intends. A VM that is paused, although its record does not say so, was about to be
// suspended, and runs on.
func (s *Sandbox) settlePause(ctx context.Context, v *liveVM, paused bool) error {
	switch {
	case paused && !s.record.Paused:
		return s.answered(v.vmm.Resume(ctx))
	case !paused && s.record.Paused:
		return s.update(func(r *ledger.Record) { r.Paused = false })
	}
	return nil
}

// swapLeases changes the leases of s's VM, unless s is being deleted, because then the leases are
// being released.
func (s *Sandbox) swapLeases(change func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == Stopping {
		return s.stateErrorLocked("rebase")
	}
	change()
	return nil
}

// settleRebase records whether a VM, given its number of rebases, has begun the pending rebase.
// Once the rebase has begun, the branch is below the VM's memory.
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
	_ = s.swapLeases(func() { // otherwise all leases are released
		if done = v.onto; begun {
			done, v.below = v.below, v.onto
		}
		v.onto = nil
	})
	callAll(done)
	return nil
}
