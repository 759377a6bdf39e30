// Command floor does only what every VMM must do. It creates a VM, a memory slot over a
// copy-on-write mapping of a file, the interrupt controllers and one vCPU. Then it runs the VM to
// its first exit. bench/fork starts it many times, to compare forkd with this minimum.
//
// It has no devices, restores no state and does not communicate with other processes. Descriptor 3
// is the file with the guest's memory. bench/fork makes the file, with code at codeAddr. The
// command prints two times to standard output, CLOCK_MONOTONIC in nanoseconds: the beginning of
// main, and the first exit. Then it keeps the VM until its standard input ends. So the removal of
// VMs is not measured, and the VMs of a burst exist at the same time, like the VMs of forked
// children.
package main

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/kvm"
)

const (
	memoryFD = 3
	codeAddr = 0x1000 // address of real-mode code that writes to an I/O port; bench/fork writes it to the file
)

func main() {
	start := now()
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "floor: %v\n", err)
		os.Exit(1)
	}
	fmt.Println(start, now())
	_, _ = os.Stdin.Read(make([]byte, 1))
}

func now() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail for this clock
	return t.Nano()
}

// run runs the VM to its first exit. It closes nothing, because the process exits afterwards.
func run() error {
	runtime.LockOSThread()
	var st unix.Stat_t
	if err := unix.Fstat(memoryFD, &st); err != nil {
		return fmt.Errorf("descriptor %d is no memory file: %w", memoryFD, err)
	}
	mem, err := guestmem.New(uint64(st.Size))
	if err != nil {
		return err
	}
	if err := mem.Map(0, uint64(st.Size), memoryFD, 0); err != nil {
		return err
	}
	sys, err := kvm.Open()
	if err != nil {
		return err
	}
	vm, err := sys.CreateVM()
	if err != nil {
		return err
	}
	region := mem.Regions()[0]
	if err := vm.SetMemslot(0, uint64(region.GPA), region.Size, region.HVA()); err != nil {
		return err
	}
	if err := vm.CreateIRQChip(); err != nil {
		return err
	}
	vcpu, err := vm.CreateVCPU(0)
	if err != nil {
		return err
	}
	sregs, err := vcpu.Sregs()
	if err != nil {
		return err
	}
	sregs.Cs.Base, sregs.Cs.Selector = 0, 0
	if err := vcpu.SetSregs(&sregs); err != nil {
		return err
	}
	if err := vcpu.SetRegs(&kvm.Regs{Rip: codeAddr, Rflags: 2}); err != nil {
		return err
	}
	if err := vcpu.Run(); err != nil {
		return err
	}
	if reason := vcpu.ExitReason(); reason != kvm.ExitIO {
		return fmt.Errorf("the first exit has reason %d, want port output", reason)
	}
	return nil
}
