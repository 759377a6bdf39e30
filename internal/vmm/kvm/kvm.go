// Package kvm wraps the ioctls of Linux KVM (Documentation/virt/kvm/api.rst) that forkd uses. Each
// ioctl has a small method.
//
// It has no policy: package machine decides a VM's memory, CPUID and state. Methods retry after
// EINTR, which KVM_CREATE_VM and other requests return when the Go runtime preempts a thread with
// SIGURG. Only Run does not retry, because an EINTR from KVM_RUN means that the vCPU was kicked. A
// VM or VCPU must not be used during or after its Close.
package kvm

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// System is an open /dev/kvm.
type System struct{ fd int }

// NewSystem returns a System for fd, an open /dev/kvm, after checking the API version. It takes
// ownership of fd.
func NewSystem(fd int) (*System, error) {
	s := &System{fd: fd}
	v, err := ioctl(fd, ioGetAPIVersion, 0)
	if err != nil {
		return nil, fmt.Errorf("get KVM API version: %w", err)
	}
	if v != apiVersion {
		return nil, fmt.Errorf("KVM API version %d: want %d", v, apiVersion)
	}
	return s, nil
}

// Open opens /dev/kvm.
func Open() (*System, error) {
	fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/kvm: %w", err)
	}
	s, err := NewSystem(fd)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return s, nil
}

// Close closes the descriptor.
func (s *System) Close() error { return unix.Close(s.fd) }

// Extension returns the result of KVM_CHECK_EXTENSION for a capability. The result is 0 if KVM
// lacks the capability.
func (s *System) Extension(capability uintptr) (int, error) {
	v, err := ioctl(s.fd, ioCheckExtension, capability)
	if err != nil {
		return 0, fmt.Errorf("check KVM capability %d: %w", capability, err)
	}
	return int(v), nil
}

// maxCPUIDEntries is the maximum number of entries of a CPUID table. It is Linux's own limit,
// KVM_MAX_CPUID_ENTRIES.
const maxCPUIDEntries = 256

// SupportedCPUID returns the CPUID leaves that the host and KVM support for guests.
func (s *System) SupportedCPUID() ([]CPUIDEntry, error) {
	var t struct {
		head    cpuidHead
		entries [maxCPUIDEntries]CPUIDEntry
	}
	t.head.Nent = maxCPUIDEntries
	if _, err := ioctlPtr(s.fd, ioGetSupportedCPUID, unsafe.Pointer(&t)); err != nil {
		return nil, fmt.Errorf("get supported CPUID: %w", err)
	}
	return t.entries[:t.head.Nent:t.head.Nent], nil
}

// MSRIndices returns the indices of the MSRs that KVM can save.
func (s *System) MSRIndices() ([]uint32, error) {
	const max = 1024
	var t struct {
		n       uint32
		indices [max]uint32
	}
	t.n = max
	if _, err := ioctlPtr(s.fd, ioGetMSRIndexList, unsafe.Pointer(&t)); err != nil {
		return nil, fmt.Errorf("get MSR index list: %w", err)
	}
	return append([]uint32(nil), t.indices[:t.n]...), nil
}

// FeatureMSR returns the value of an MSR that contains feature bits, such as
// IA32_ARCH_CAPABILITIES. The value has only bits that the host and KVM support. If they do not
// support the MSR at all, ok is false.
func (s *System) FeatureMSR(index uint32) (value uint64, ok bool, err error) {
	var t msrTable
	t.head.Nmsrs = 1
	t.entries[0].Index = index
	n, err := ioctlNow(s.fd, ioGetMSRs, unsafe.Pointer(&t))
	if err != nil {
		return 0, false, fmt.Errorf("get feature MSR %#x: %w", index, err)
	}
	return t.entries[0].Data, n == 1, nil
}

// CreateVM makes an empty VM.
func (s *System) CreateVM() (*VM, error) {
	size, err := ioctl(s.fd, ioGetVCPUMmapSize, 0)
	if err != nil {
		return nil, fmt.Errorf("get vCPU mmap size: %w", err)
	}
	if size < unsafe.Sizeof(runHead{}) {
		return nil, fmt.Errorf("vCPU mmap size %d: want %d or more", size, unsafe.Sizeof(runHead{}))
	}
	fd, err := ioctl(s.fd, ioCreateVM, 0)
	if err != nil {
		return nil, fmt.Errorf("create VM: %w", err)
	}
	return &VM{fd: int(fd), runSize: int(size)}, nil
}

// ioctl makes a KVM request whose argument is a number.
func ioctl(fd int, req, arg uintptr) (uintptr, error) {
	return uninterrupted(func() (uintptr, uintptr, unix.Errno) {
		return unix.Syscall(unix.SYS_IOCTL, uintptr(fd), req, arg)
	})
}

// ioctlPtr makes a KVM request whose argument is a pointer.
func ioctlPtr(fd int, req uintptr, arg unsafe.Pointer) (uintptr, error) {
	return uninterrupted(func() (uintptr, uintptr, unix.Errno) {
		return unix.Syscall(unix.SYS_IOCTL, uintptr(fd), req, uintptr(arg))
	})
}

// ioctlNow is like ioctlPtr, but does not inform the Go runtime. It is for requests that read or
// set state. Such requests wait at most for short locks of KVM, or for a page of the guest.
func ioctlNow(fd int, req uintptr, arg unsafe.Pointer) (uintptr, error) {
	return uninterrupted(func() (uintptr, uintptr, unix.Errno) {
		return unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), req, uintptr(arg))
	})
}

// uninterrupted makes a system call, and repeats it while signals interrupt it.
func uninterrupted(call func() (uintptr, uintptr, unix.Errno)) (uintptr, error) {
	for {
		switch r, _, errno := call(); errno {
		case 0:
			return r, nil
		case unix.EINTR:
		default:
			return r, errno
		}
	}
}
