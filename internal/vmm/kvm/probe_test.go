package kvm

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"
)

// On the emulated host, and where tests with VMs are required, the probe must succeed. On other
// hosts it may return an error, but must not crash or hang.
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

// A signal ends the probe only after the timer has set the variable late.
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
