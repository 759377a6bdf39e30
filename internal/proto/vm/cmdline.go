package vm

import "strings"

// Cmdline returns the kernel command line for a guest of forkd-vmm, followed by extra parameters.
// If a parameter is repeated, the kernel uses the last one. The VMM checks the result before it
// boots.
//
// It omits no_timer_check, i8042.* and noapic on purpose. The ACPI tables already state that there
// is no timer to check, no keyboard controller and no legacy interrupt controller. It also omits
// mitigations=, nokaslr and similar parameters, because the image decides about the guest's own
// protection.
func Cmdline(extra ...string) string {
	params := []string{
		// The serial port is the only console. The VMM keeps its latest output for the sandbox's
		// log.
		"console=ttyS0",
		// Print only warnings and errors, because every console byte is an exit to the VMM.
		"quiet",
		// Reset at once after a kernel panic, which the VMM reports. By default the kernel would
		// hang.
		"panic=-1",
		// Use the ACPI reset register. By default Linux leaves the reset of a hardware-reduced
		// platform to EFI. Without EFI it jumps to the BIOS.
		"reboot=acpi",
		// kvm-clock is the only clock that KVM preserves over a save and restore on any host. The
		// kernel would prefer the TSC if it is invariant.
		"clocksource=kvm-clock",
		// Do not compare the TSCs of vCPUs, which takes up to 20 ms for each and fails when the
		// host is busy. Do not watch the TSC against another clock either: after a restore it has
		// jumped, and the kernel would declare it broken.
		"tsc=reliable",
		// After a restore, watchdogs would take the time between snapshot and fork for a lockup.
		// Without them an idle vCPU also wakes less often, so an idle child dirties fewer pages.
		"nowatchdog",
		// No pressure stall information. Maintaining it writes memory at every context switch and
		// wakes a worker every two seconds.
		"psi=0",
		// Trust RDRAND from the start, so that no early program waits for entropy.
		"random.trust_cpu=on",
		// There is no PCI: skip probing for it through ports.
		"pci=off",
		// There is one serial port. Do not probe for the three others that a PC may have.
		"8250.nr_uarts=1",
		// A written huge page takes 2 MiB of private memory in every child where 4 KiB would do.
		// Programs can still ask for huge pages (madvise).
		"transparent_hugepage=madvise",
		// No device has a DMA limit, so guests with RAM above 4 GiB need no 64 MiB of bounce
		// buffers.
		"swiotlb=noforce",
	}
	return strings.Join(append(params, extra...), " ")
}
