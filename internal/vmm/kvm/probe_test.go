package kvm

import (
	"errors"
	"os"
	"testing"
)

// In the machine and where VM tests must run the probe must pass; elsewhere it must give a reason
// rather than crash or hang.
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
