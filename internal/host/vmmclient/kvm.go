package vmmclient

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// KVM holds what VMMs share of the host's KVM: the device, opened for the first VMM, and the CPUID
// values that it supports, from the first VMM's answer. Asking for them takes longer than making a
// VM. They stay valid, because a kernel module whose device is open cannot be replaced. The zero
// value is ready; its methods may be called concurrently.
type KVM struct {
	Check func() error // returns why no VM can run here; nil: not checked

	mu sync.Mutex
	// +checklocks:mu
	opened bool
	// +checklocks:mu
	device int // /dev/kvm, once opened
	// +checklocks:mu
	cpuid []byte
}

// NoKVMError says why no VM can be started on this host. Its clients may be on another host.
type NoKVMError struct{ Err error }

func (e *NoKVMError) Error() string {
	return fmt.Sprintf("the daemon's host cannot run VMs: %v (run 'forkd doctor' there; 'forkd machine start' emulates a host that can)", e.Err)
}
func (e *NoKVMError) Unwrap() error { return e.Err }

// open returns the device, which stays the KVM's, and the known CPUID values, or a *NoKVMError.
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

// learn stores the CPUID values in a VMM's answer, if they were requested.
func (k *KVM) learn(cpuid []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cpuid == nil && len(cpuid) > 0 { // a VMM that was given the values does not return them
		k.cpuid = cpuid
	}
}

// Close closes the device. VMMs that have it keep it.
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
