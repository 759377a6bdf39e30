package kvm

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// VM is one virtual machine. Create its parts in this order: memory slots, interrupt controllers,
// vCPUs. After CreateIRQChip, setting a memory slot waits for an SRCU grace period, which takes
// milliseconds instead of microseconds.
type VM struct {
	fd      int
	runSize int
}

// Close closes the descriptor. The kernel frees the VM when the descriptors of its vCPUs are also
// closed.
func (v *VM) Close() error { return unix.Close(v.fd) }

// SetMemslot makes host memory at hva appear in the guest at gpa. The memory slot has the given
// number (slot), and the given size in bytes.
func (v *VM) SetMemslot(slot uint32, gpa, size uint64, hva uintptr) error {
	r := memoryRegion{Slot: slot, Guest_phys_addr: gpa, Memory_size: size, Userspace_addr: uint64(hva)}
	if _, err := ioctlPtr(v.fd, ioSetUserMemoryRegion, unsafe.Pointer(&r)); err != nil {
		return fmt.Errorf("set memslot %d: %w", slot, err)
	}
	return nil
}

// SetTSSAddr sets the address of three pages that KVM needs on Intel hosts for real mode.
func (v *VM) SetTSSAddr(gpa uint64) error {
	if _, err := ioctl(v.fd, ioSetTSSAddr, uintptr(gpa)); err != nil {
		return fmt.Errorf("set TSS address: %w", err)
	}
	return nil
}

// SetIdentityMapAddr sets the address of a page that KVM needs on Intel hosts for real mode.
func (v *VM) SetIdentityMapAddr(gpa uint64) error {
	if _, err := ioctlPtr(v.fd, ioSetIdentityMapAddr, unsafe.Pointer(&gpa)); err != nil {
		return fmt.Errorf("set identity map address: %w", err)
	}
	return nil
}

// CreateIRQChip creates the in-kernel PICs and IOAPIC. vCPUs that are created later have a LAPIC.
func (v *VM) CreateIRQChip() error {
	if _, err := ioctl(v.fd, ioCreateIRQChip, 0); err != nil {
		return fmt.Errorf("create irqchip: %w", err)
	}
	return nil
}

// IRQChip returns the state of one of the interrupt controllers (IRQChipPICMaster, IRQChipPICSlave,
// IRQChipIOAPIC).
func (v *VM) IRQChip(id uint32) (*IRQChip, error) {
	c := &IRQChip{Id: id}
	if _, err := ioctlNow(v.fd, ioGetIRQChip, unsafe.Pointer(c)); err != nil {
		return nil, fmt.Errorf("get irqchip %d: %w", id, err)
	}
	return c, nil
}

// SetIRQChip restores the interrupt controller c.Id.
func (v *VM) SetIRQChip(c *IRQChip) error {
	if _, err := ioctlNow(v.fd, ioSetIRQChip, unsafe.Pointer(c)); err != nil {
		return fmt.Errorf("set irqchip %d: %w", c.Id, err)
	}
	return nil
}

// AddIOEventFD makes guest writes to gpa signal eventfd, without an exit to this process. If
// anyLength is set, writes of any length signal the eventfd, and KVM need not decode the
// instruction. This needs CapIOEventFDAnyLength. If anyLength is not set, only 32-bit writes signal
// the eventfd.
func (v *VM) AddIOEventFD(eventfd int, gpa uint64, anyLength bool) error {
	f := ioeventfd{Addr: gpa, Len: 4, Fd: int32(eventfd)}
	if anyLength {
		f.Len = 0
	}
	if _, err := ioctlPtr(v.fd, ioIOEventFD, unsafe.Pointer(&f)); err != nil {
		return fmt.Errorf("add ioeventfd at %#x: %w", gpa, err)
	}
	return nil
}

// Clock returns the VM's kvm-clock in nanoseconds.
func (v *VM) Clock() (uint64, error) {
	var c ClockData
	if _, err := ioctlNow(v.fd, ioGetClock, unsafe.Pointer(&c)); err != nil {
		return 0, fmt.Errorf("get clock: %w", err)
	}
	return c.Clock, nil
}

// SetClock sets the VM's kvm-clock in nanoseconds. The clock continues from this value.
func (v *VM) SetClock(nanos uint64) error {
	c := ClockData{Clock: nanos}
	if _, err := ioctlNow(v.fd, ioSetClock, unsafe.Pointer(&c)); err != nil {
		return fmt.Errorf("set clock: %w", err)
	}
	return nil
}

// CreateVCPU creates vCPU number id, whose APIC identifier is the same number.
func (v *VM) CreateVCPU(id uint32) (*VCPU, error) {
	fd, err := ioctl(v.fd, ioCreateVCPU, uintptr(id))
	if err != nil {
		return nil, fmt.Errorf("create vCPU %d: %w", id, err)
	}
	run, err := unix.Mmap(int(fd), 0, v.runSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = unix.Close(int(fd))
		return nil, fmt.Errorf("map vCPU %d: %w", id, err)
	}
	return &VCPU{id: id, fd: int(fd), run: run, head: (*runHead)(unsafe.Pointer(unsafe.SliceData(run))),
		waiting: id != 0}, nil // vCPU 0 is the boot processor
}
