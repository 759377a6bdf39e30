package kvm

import (
	"errors"
	"os"
	"testing"
)

// In the machine and on real hosts the probe must pass; elsewhere it must give a reason rather than crash or hang.
func TestProbe(t *testing.T) {
	err := Probe()
	var unfit *UnfitError
	switch {
	case err == nil:
	case os.Getenv("FORKD_TEST_MACHINE") != "":
		t.Fatalf("KVM in the test machine: %v", err)
	case errors.As(err, &unfit):
		t.Logf("unfit: %s", unfit.Reason)
	default:
		t.Skipf("no KVM here: %v", err)
	}
}
