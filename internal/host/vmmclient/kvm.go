package vmmclient

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// KVM is the host's KVM as VMMs share it: its device, opened for the first of them, and what it can
// show to guests, as the first of them has answered. To ask takes longer than to make a VM. The
// answer stays true, because a module of the kernel whose device is open is not replaced. The zero
// value is ready; its methods may be called concurrently.
type KVM struct {
	Check func() error // says why no VM can run here; nil: that is not asked

	mu     sync.Mutex
	opened bool
	device int // /dev/kvm, once it is opened
	cpuid  []byte
}

// NoKVMError says why no VM can be started on this host, to clients that may be elsewhere.
type NoKVMError struct{ Err error }

func (e *NoKVMError) Error() string {
	return fmt.Sprintf("the daemon's host cannot run VMs: %v (run 'forkd doctor' there; 'forkd machine start' emulates a host that can)", e.Err)
}
func (e *NoKVMError) Unwrap() error { return e.Err }

// open returns the device, which stays the KVM's, and what is known of it, or a *NoKVMError.
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

// learn takes over what a VMM has answered, if it was asked.
func (k *KVM) learn(cpuid []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cpuid == nil && len(cpuid) > 0 { // who was told does not tell
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
