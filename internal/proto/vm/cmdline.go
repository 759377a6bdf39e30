package vm

import "strings"

// Cmdline returns the kernel command line for a guest of forkd-vmm, followed by extra parameters
// (if a parameter is repeated, the kernel uses the last one). The VMM checks the result before it
// boots.
//
// Omitted on purpose: no_timer_check, i8042.* and noapic, because the ACPI tables already say that
// there is no timer to check, no keyboard controller and no legacy interrupt controller; and
// mitigations=, nokaslr and the like, because the image decides about the guest's own protection.
func Cmdline(extra ...string) string {
	params := []string{
		// The serial port is the only console; the VMM keeps the last of it for the sandbox's log.
		"console=ttyS0",
		// Every console byte is an exit to the VMM: print warnings and worse only.
		"quiet",
		// On a kernel panic, reset at once, which the VMM reports. By default the kernel would
		// hang.
		"panic=-1",
		// Use the ACPI reset register. By default Linux leaves the reset of a hardware-reduced
		// platform to EFI, and when there is none, jumps to the BIOS.
		"reboot=acpi",
		// The only clock that KVM preserves over a save and restore, on any host. The kernel would
		// prefer the TSC if it is invariant.
		"clocksource=kvm-clock",
		// Do not compare the TSCs of vCPUs, which takes up to 20 ms each and fails when the host is
		// busy. Do not watch the TSC against another clock either: after a restore it has jumped
		// and would be declared broken.
		"tsc=reliable",
		// After a restore, the time between snapshot and fork looks like a lockup. Without the
		// watchdogs an idle vCPU also wakes less often, so an idle child dirties fewer pages.
		"nowatchdog",
		// No pressure stall information: maintaining it writes memory at every context switch, and
		// a worker wakes every two seconds.
		"psi=0",
		// Credit RDRAND from the start so that nothing in early user space waits for entropy.
		"random.trust_cpu=on",
		// There is no PCI: skip probing for it through ports.
		"pci=off",
		// One serial port: do not probe for the three others a PC may have.
		"8250.nr_uarts=1",
		// A written huge page is 2 MiB of private memory in every child where 4 KiB would do.
		// Programs that know better can still ask (madvise).
		"transparent_hugepage=madvise",
		// No device has a DMA limit, so no 64 MiB of bounce buffers in guests with RAM above 4 GiB.
		"swiotlb=noforce",
	}
	return strings.Join(append(params, extra...), " ")
}
