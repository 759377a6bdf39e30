package cpuid

import "slices"

// MSRs with a meaning for the order of a restore.
const (
	MSRTSC         = 0x10  // IA32_TIME_STAMP_COUNTER
	MSRTSCDeadline = 0x6e0 // IA32_TSC_DEADLINE
)

// SavedMSRs returns the model-specific registers of a vCPU's saved state, in the order in which a restore must set
// them. supported is what KVM_GET_MSR_INDEX_LIST returned.
//
// Order of a whole vCPU: CPUID entries, then KVM_SET_SREGS (which has EFER, FS and GS base and the APIC base), XCRS and
// XSAVE, then KVM_SET_LAPIC, then these. A deadline is ignored while the local APIC's timer is not in deadline mode, and
// it is compared with the TSC; kvm-clock's page is computed from the TSC and from KVM_SET_CLOCK, which comes first too.
//
// Not in the list, and why:
//   - MSR_KVM_WALL_CLOCK(_NEW): it keeps nothing; setting it makes KVM write a page of the guest, in every child. A guest
//     that wants the wall clock sets it first.
//   - MSR_KVM_ASYNC_PF_*, performance counters, VMX, SVM, processor trace, XFD: their features are hidden by every template.
//   - Machine check banks: the machine injects no machine checks.
//   - SMBASE and the like: there is no system management mode without firmware.
func SavedMSRs(supported []uint32) []uint32 {
	var list []uint32
	for _, m := range savedMSRs() {
		if slices.Contains(supported, m) {
			list = append(list, m)
		}
	}
	list = append(list, mtrrs()...)
	// The time comes last, and the deadline after it.
	for _, m := range timeMSRs() {
		if slices.Contains(supported, m) {
			list = append(list, m)
		}
	}
	return list
}

// savedMSRs may be set in any order. Intel SDM vol. 4, AMD APM vol. 2 appendix A, Documentation/virt/kvm/x86/msr.rst.
func savedMSRs() []uint32 {
	return []uint32{
		0x174, 0x175, 0x176, // IA32_SYSENTER_CS, ESP, EIP
		0xc0000081, 0xc0000082, 0xc0000083, 0xc0000084, // STAR, LSTAR, CSTAR, SFMASK
		0xc0000102, // KERNEL_GS_BASE
		0xc0000103, // TSC_AUX: the CPU number that RDPID and RDTSCP return
		0x1a0,      // IA32_MISC_ENABLE
		0x140,      // MISC_FEATURES_ENABLES: CPUID faulting
		0x277,      // IA32_PAT
		0x48,       // IA32_SPEC_CTRL
		0xc001011f, // VIRT_SPEC_CTRL
		0x10a,      // IA32_ARCH_CAPABILITIES: read-only to the guest, which has chosen its mitigations by it
		0x122,      // IA32_TSX_CTRL
		0xe1,       // IA32_UMWAIT_CONTROL
		0xda0,      // IA32_XSS
		0x17a,      // IA32_MCG_STATUS
		0x17b,      // IA32_MCG_CTL
		0x4b564d03, // MSR_KVM_STEAL_TIME
		0x4b564d04, // MSR_KVM_PV_EOI_EN
		0x4b564d05, // MSR_KVM_POLL_CONTROL
	}
}

// timeMSRs are set last, in this order.
func timeMSRs() []uint32 {
	return []uint32{
		0x3b,           // IA32_TSC_ADJUST: what the guest has added, for it to read; the next one includes it
		MSRTSC,         // restored as it was: KVM keeps the TSCs of vCPUs that are set to the same value in step
		0x4b564d01,     // MSR_KVM_SYSTEM_TIME_NEW: kvm-clock
		MSRTSCDeadline, // the next timer interrupt
	}
}

// mtrrs returns the memory type range registers. KVM has always had them, with 8 variable ranges, but lists them only
// in newer versions.
func mtrrs() []uint32 {
	const varRanges = 8
	list := []uint32{
		0x250, 0x258, 0x259, // 64 KiB and 16 KiB ranges
		0x268, 0x269, 0x26a, 0x26b, 0x26c, 0x26d, 0x26e, 0x26f, // 4 KiB ranges
	}
	for i := range uint32(varRanges) {
		list = append(list, 0x200+2*i, 0x201+2*i)
	}
	return append(list, 0x2ff) // IA32_MTRR_DEF_TYPE, which enables the others
}
