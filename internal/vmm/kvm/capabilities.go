package kvm

import (
	"fmt"
	"strings"
	"unsafe"
)

// capability is a capability for KVM_CHECK_EXTENSION, with its name in <linux/kvm.h> without the
// prefix KVM_CAP_.
type capability struct {
	id   uintptr
	name string
}

// required lists the capabilities without which forkd cannot run, save and restore a VM.
func required() []capability {
	return []capability{
		{CapIRQChip, "IRQCHIP"}, // missing in kernels that were built without the in-kernel IOAPIC
		{CapUserMemory, "USER_MEMORY"},
		{CapSetTSSAddr, "SET_TSS_ADDR"},
		{CapSetIdentityMapAddr, "SET_IDENTITY_MAP_ADDR"},
		{CapExtCPUID, "EXT_CPUID"},
		{CapMPState, "MP_STATE"},
		{CapIOEventFD, "IOEVENTFD"},
		{CapAdjustClock, "ADJUST_CLOCK"},
		{CapVCPUEvents, "VCPU_EVENTS"},
		{CapDebugRegs, "DEBUGREGS"},
		{CapXSave, "XSAVE"},
		{CapXCRs, "XCRS"},
		{CapGetTSCKHz, "GET_TSC_KHZ"},
		{CapTSCDeadline, "TSC_DEADLINE_TIMER"},
		{CapKVMClockCtrl, "KVMCLOCK_CTRL"},
		{CapImmediateExit, "IMMEDIATE_EXIT"},
		{CapGetMSRFeatures, "GET_MSR_FEATURES"},
	}
}

// CheckCapabilities returns an *UnfitError with the names of all required capabilities that KVM
// lacks, or nil if it has all of them.
func (s *System) CheckCapabilities() error { return checkCapabilities(s.Extension) }

func checkCapabilities(extension func(uintptr) (int, error)) error {
	var missing []string
	for _, c := range required() {
		n, err := extension(c.id)
		if err != nil {
			return err
		}
		if n == 0 {
			missing = append(missing, "KVM_CAP_"+c.name)
		}
	}
	if len(missing) > 0 {
		return &UnfitError{Reason: "it lacks " + strings.Join(missing, ", ")}
	}
	return nil
}

// SetPolicy enables KVM features that protect the host from its guests. It skips features that KVM
// does not support. The features are:
//
//   - an exit when a guest takes a bus lock, which slows down the whole host;
//   - an exit when a guest keeps a CPU from handling events;
//   - no polling in halted vCPUs: on a host with many idle VMs, polling costs more than it saves.
//
// SetPolicy must be called before the vCPUs are created.
func (v *VM) SetPolicy(s *System) error {
	for _, c := range []struct {
		id   uintptr
		need int // bits that the result of KVM_CHECK_EXTENSION must have
		arg  uint64
	}{
		{CapBusLockExit, BusLockExit, BusLockExit},
		{CapNotifyVMExit, 1, NotifyEnabled | NotifyUser}, // the high half is 0, so it adds no time to KVM's own limit
		{CapHaltPoll, 1, 0},
	} {
		have, err := s.Extension(c.id)
		if err != nil {
			return err
		}
		if have&c.need != c.need {
			continue
		}
		e := enableCap{Cap: uint32(c.id), Args: [4]uint64{c.arg}}
		if _, err := ioctlPtr(v.fd, ioEnableCap, unsafe.Pointer(&e)); err != nil {
			return fmt.Errorf("enable KVM capability %d: %w", c.id, err)
		}
	}
	return nil
}
