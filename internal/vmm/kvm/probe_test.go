package kvm

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"
)

// In the emulated host, and where VM tests are required, the probe must pass. Elsewhere it must
// return a reason instead of crashing or hanging.
func TestProbe(t *testing.T) {
	err := Probe()
	var unfit *UnfitError
	switch {
	case err == nil:
	case os.Getenv("FORKD_TEST_MACHINE") != "", os.Getenv("FORKD_TEST_KVM") != "":
		t.Fatalf("KVM, where VM tests must run: %v", err)
	case errors.As(err, &unfit):
		t.Logf("unfit: %s", unfit.Reason)
	default:
		t.Skipf("no KVM here: %v", err)
	}
}

// The timer's signal ends the probe; other signals do not.
func TestProbeInterrupted(t *testing.T) {
	var late atomic.Bool
	runs := 0
	run := func() error {
		if runs++; runs == 3 {
			return nil
		}
		return ErrKicked
	}
	if err := runUntil(&late, run); err != nil || runs != 3 {
		t.Errorf("interrupted twice: %v after %d runs", err, runs)
	}
	late.Store(true)
	runs = 0
	if err := runUntil(&late, run); !errors.Is(err, ErrKicked) || runs != 1 {
		t.Errorf("late: %v after %d runs", err, runs)
	}
}
