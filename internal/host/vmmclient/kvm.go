package vmmclient

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// KVM holds the parts of the host's KVM that VMMs share: the device, which is opened for the first
// VMM, and the CPUID values that KVM supports. The daemon takes the values from the answer of the
// first VMM, because asking KVM for them takes longer than creating a VM. The values stay valid,
// because the kernel module cannot be replaced while its device is open. The zero value is ready to
// use. The methods may be called concurrently.
type KVM struct {
	Check func() error // returns an error if no VM can run here; may be nil

	mu sync.Mutex
	// +checklocks:mu
	opened bool
	// +checklocks:mu
	device int // descriptor of /dev/kvm, if opened
	// +checklocks:mu
	cpuid []byte
}

// NoKVMError says why no VM can be started on this host.
type NoKVMError struct{ Err error }

func (e *NoKVMError) Error() string {
	return fmt.Sprintf("the daemon's host cannot run VMs: %v (run 'forkd doctor' there; 'forkd machine start' emulates a host that can)", e.Err)
}
func (e *NoKVMError) Unwrap() error { return e.Err }

// open returns the device, which k still owns, and the CPUID values if they are known. If KVM
// cannot be used, the error is a *NoKVMError.
func (k *KVM) open() (device int, cpuid []byte, err error) {
	if k.Check != nil {
		if err := k.Check(); err != nil {
			return -1, nil, &NoKVMError{err}
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.opened {
		if k.device, err = unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			return -1, nil, &NoKVMError{fmt.Errorf("open /dev/kvm: %w", err)}
		}
		k.opened = true
	}
	return k.device, k.cpuid, nil
}

// learn stores the CPUID values from a VMM's answer, if the answer has any.
func (k *KVM) learn(cpuid []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cpuid == nil && len(cpuid) > 0 { // a VMM returns values only if the daemon has sent none
		k.cpuid = cpuid
	}
}

// Close closes the device. VMMs that have received it can still use it.
func (k *KVM) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.opened {
		return nil
	}
	k.opened = false
	k.cpuid = nil
	return unix.Close(k.device)
}
