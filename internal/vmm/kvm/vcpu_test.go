package kvm

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Only a vCPU that waits for its start-up IPI may be run again after EAGAIN: any other would spin.
func TestRunTakesEAGAINFromAWaitingVCPUOnly(t *testing.T) {
	state := func(s uint32) func() (MPState, error) {
		return func() (MPState, error) { return MPState{State: s}, nil }
	}
	c := &VCPU{id: 1, waiting: true}
	for i, s := range []uint32{MPStateUninitialized, MPStateUninitialized, MPStateRunnable} { // the IPI comes
		if err := c.runError(unix.EAGAIN, state(s)); err != ErrKicked {
			t.Fatalf("EAGAIN %d of a waiting vCPU: %v, want ErrKicked", i, err)
		}
	}
	for _, c := range []*VCPU{c, {id: 0}} {
		err := c.runError(unix.EAGAIN, state(MPStateRunnable))
		if !errors.Is(err, unix.EAGAIN) || errors.Is(err, ErrKicked) {
			t.Fatalf("EAGAIN of vCPU %d, which runs: %v, want an error", c.id, err)
		}
		for _, limit := range []string{"pids.max", "RLIMIT_NPROC"} {
			if !strings.Contains(err.Error(), limit) {
				t.Errorf("%q does not name %s", err, limit)
			}
		}
	}
	if err := c.runError(unix.EINTR, state(MPStateRunnable)); err != ErrKicked {
		t.Errorf("EINTR: %v, want ErrKicked", err)
	}
	if err := c.runError(unix.EFAULT, state(MPStateRunnable)); !errors.Is(err, unix.EFAULT) {
		t.Errorf("EFAULT: %v", err)
	}
	if err := (&VCPU{waiting: true}).runError(unix.EAGAIN, func() (MPState, error) { return MPState{}, unix.EIO }); !errors.Is(err, unix.EIO) {
		t.Errorf("a state that cannot be read: %v", err)
	}
}
