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
	mu     sync.Mutex
	opened bool
	device int // /dev/kvm, once it is opened
	cpuid  []byte
}

// open returns the device, which stays the KVM's, and what is known of it.
func (k *KVM) open() (device int, cpuid []byte, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.opened {
		if k.device, err = unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			return -1, nil, fmt.Errorf("open /dev/kvm: %w", err)
		}
		k.opened = true
	}
	return k.device, k.cpuid, nil
}

// learn takes over what a VMM has answered, if it was asked.
func (k *KVM) learn(cpuid []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(cpuid) > 0 {
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
