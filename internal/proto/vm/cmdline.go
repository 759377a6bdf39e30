package vm

import "strings"

// Cmdline returns the kernel command line for a guest of forkd-vmm, with extra parameters at the
// end. If a parameter occurs twice, the kernel uses the last value. The VMM checks the command line
// before it boots the guest.
//
// The parameters no_timer_check, i8042.* and noapic are not needed, because the ACPI tables say
// that there is no timer to check, no keyboard controller and no legacy interrupt controller.
// Parameters such as mitigations= and nokaslr are left to the image, which decides about the
// protection of its own programs.
func Cmdline(extra ...string) string {
	params := []string{
		// The serial port is the only console. The VMM keeps the console's last output as the
		// sandbox's log.
		"console=ttyS0",
		// Print only warnings and errors, because each byte on the console is an exit to the VMM.
		"quiet",
		// Reset at once after a kernel panic, so that the VMM notices and reports it. By default
		// the kernel would hang.
		"panic=-1",
		// Reset through ACPI. By default Linux resets a hardware-reduced platform through EFI, or
		// else through a BIOS, and the guest has neither.
		"reboot=acpi",
		// Use kvm-clock, because it is the only clock that KVM preserves over a save and restore on
		// every host. The kernel would prefer the TSC if it is invariant.
		"clocksource=kvm-clock",
		// Do not compare the TSCs of the vCPUs, because that takes up to 20 ms for each vCPU and
		// fails if the host is busy. Do not check the TSC against another clock either, because the
		// TSC has jumped after a restore, and the kernel would stop using it.
		"tsc=reliable",
		// Disable watchdogs, because after a restore they would mistake the time between snapshot
		// and fork for a lockup. Without watchdogs, an idle vCPU also wakes up less often, so an
		// idle child writes fewer pages.
		"nowatchdog",
		// Disable pressure stall information, which writes memory at every context switch and wakes
		// up a worker every two seconds.
		"psi=0",
		// Trust RDRAND from the start, so that programs do not wait for entropy.
		"random.trust_cpu=on",
		// There is no PCI bus. Do not look for one through I/O ports.
		"pci=off",
		// There is one serial port. Do not look for the three others that a PC may have.
		"8250.nr_uarts=1",
		// Do not use huge pages by default, because a forked sandbox that writes to a huge page
		// needs 2 MiB of private memory instead of 4 KiB. Programs can still request huge pages
		// (madvise).
		"transparent_hugepage=madvise",
		// Report free blocks of at least 128 KiB (2^5 pages) to the balloon device. By default
		// Linux reports only blocks of 2 or 4 MiB. When a program in a guest of 192 MiB had freed
		// 80 MiB, the host still held 44 MiB of them by default, and 23 MiB with blocks of 128 KiB.
		"page_reporting.page_reporting_order=5",
		// Do not reserve 64 MiB of bounce buffers for guests with RAM above 4 GiB. No device has a
		// limit for DMA addresses.
		"swiotlb=noforce",
	}
	return strings.Join(append(params, extra...), " ")
}
