package kvm

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// One error names all capabilities that KVM lacks. The names are those of KVM's header.
func TestMissingCapabilitiesAreNamedTogether(t *testing.T) {
	without := func(missing ...uintptr) func(uintptr) (int, error) {
		return func(id uintptr) (int, error) {
			if slices.Contains(missing, id) {
				return 0, nil
			}
			return 1, nil
		}
	}
	if err := checkCapabilities(without()); err != nil {
		t.Errorf("a KVM that has all: %v", err)
	}
	err := checkCapabilities(without(CapIRQChip, CapXCRs, CapAdjustClock, CapTSCDeadline, CapImmediateExit))
	var unfit *UnfitError
	if !errors.As(err, &unfit) {
		t.Fatalf("a KVM that lacks five: %v", err)
	}
	for _, name := range []string{"IRQCHIP", "XCRS", "ADJUST_CLOCK", "TSC_DEADLINE_TIMER", "IMMEDIATE_EXIT"} {
		if !strings.Contains(err.Error(), "KVM_CAP_"+name) {
			t.Errorf("%q does not name %s", err, name)
		}
	}
	if strings.Contains(err.Error(), "MP_STATE") {
		t.Errorf("%q names what is there", err)
	}
	if err := checkCapabilities(func(uintptr) (int, error) { return 0, unix.EBADF }); !errors.Is(err, unix.EBADF) {
		t.Errorf("a descriptor that is not KVM's: %v", err)
	}
}
