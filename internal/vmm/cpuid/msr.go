package cpuid

import "slices"

// MSRs that a restore must set in a certain order.
const (
	MSRTSC         = 0x10  // IA32_TIME_STAMP_COUNTER
	MSRTSCAdjust   = 0x3b  // IA32_TSC_ADJUST: the offset that the guest has added to the TSC
	MSRTSCDeadline = 0x6e0 // IA32_TSC_DEADLINE
)

// SavedMSRs returns the MSRs in a vCPU's saved state, in the order in which a restore must set
// them. The supported MSRs are those that KVM_GET_MSR_INDEX_LIST returns. The caller must pass the
// result of SavedMSRs to ShownMSRs.
//
// A whole vCPU is restored in this order: CPUID entries, KVM_SET_SREGS (which has EFER, FS and GS
// base and the APIC base), XCRS and XSAVE, KVM_SET_LAPIC, and then these MSRs. The order matters:
// KVM ignores a deadline if the local APIC's timer is not in deadline mode, and KVM compares the
// deadline with the TSC. KVM_SET_CLOCK must also come before the MSRs, because KVM computes
// kvm-clock's page from the clock and from the TSC.
//
// Not in the list:
//   - MSR_KVM_WALL_CLOCK(_NEW): it has no state. Setting it makes KVM write to a page of the guest.
//     This page would then be copied in every forked sandbox. A guest sets the MSR before each use
//     of the wall clock.
//   - MSR_KVM_ASYNC_PF_*, performance counters, VMX, SVM, processor trace, XFD: every template
//     hides their features.
//   - Machine check banks: the machine injects no machine checks.
//   - SMBASE and other MSRs of system management mode, which needs firmware.
func SavedMSRs(supported []uint32) []uint32 {
	var list []uint32
	for _, m := range savedMSRs() {
		if slices.Contains(supported, m) {
			list = append(list, m)
		}
	}
	list = append(list, mtrrs()...)
	// The TSC comes after all other MSRs, and the deadline after the TSC.
	for _, m := range timeMSRs() {
		if slices.Contains(supported, m) {
			list = append(list, m)
		}
	}
	return list
}

// ShownMSRs returns the MSRs of the list msrs that a vCPU with the given CPUID entries can have
// used, in the same order. Without this filter, a snapshot would contain MSRs of features that its
// template hides, and a host without these MSRs would refuse the snapshot.
func ShownMSRs(msrs []uint32, entries []Entry) []uint32 {
	list := make([]uint32, 0, len(msrs))
	for _, m := range msrs {
		if needs := msrFeatures(m); needs == nil || slices.ContainsFunc(needs, func(f feature) bool {
			return f.in(entries)
		}) {
			list = append(list, m)
		}
	}
	return list
}

// MSR numbers: Intel SDM vol. 4, AMD APM vol. 2 appendix A, Documentation/virt/kvm/x86/msr.rst.
const (
	msrSpecCtrl      = 0x48
	msrUMWAITControl = 0xe1
	msrArchCaps      = 0x10a
	msrTSXCtrl       = 0x122
	msrXSS           = 0xda0
	msrTSCAux        = 0xc0000103
	msrVirtSpecCtrl  = 0xc001011f
	msrKVMClock      = 0x4b564d01 // MSR_KVM_SYSTEM_TIME_NEW
	msrKVMStealTime  = 0x4b564d03
	msrKVMEOI        = 0x4b564d04
	msrKVMPoll       = 0x4b564d05
	msrMTRRFirst     = 0x200
	msrMTRRLast      = 0x2ff
	msrPAT           = 0x277 // not an MTRR, although its number is among the numbers of the MTRRs
)

// savedMSRs returns the MSRs that a restore may set in any order.
func savedMSRs() []uint32 {
	return []uint32{
		0x174, 0x175, 0x176, // IA32_SYSENTER_CS, ESP, EIP
		0xc0000081, 0xc0000082, 0xc0000083, 0xc0000084, // STAR, LSTAR, CSTAR, SFMASK
		0xc0000102, // KERNEL_GS_BASE
		msrTSCAux,  // the CPU number that RDPID and RDTSCP return
		0x1a0,      // IA32_MISC_ENABLE
		0x140,      // MISC_FEATURES_ENABLES: CPUID faulting
		msrPAT,
		msrSpecCtrl,
		msrVirtSpecCtrl,
		msrArchCaps, // read-only for the guest, which has chosen its mitigations by this value
		msrTSXCtrl,
		msrUMWAITControl,
		msrXSS,
		0x17a, // IA32_MCG_STATUS
		0x17b, // IA32_MCG_CTL
		msrKVMStealTime,
		msrKVMEOI,
		msrKVMPoll,
	}
}

// timeMSRs returns the MSRs that a restore must set last, in this order.
func timeMSRs() []uint32 {
	return []uint32{
		MSRTSCAdjust,   // the offset that the guest has added to the TSC; the value of MSRTSC includes it
		MSRTSC,         // set without an adjustment, because KVM synchronizes vCPUs that receive the same value
		msrKVMClock,    // makes KVM compute the clock's page from the TSC
		MSRTSCDeadline, // the next timer interrupt
	}
}

// mtrrs returns the MTRRs. KVM has always had them, with 8 variable ranges, but only newer versions
// of KVM list them.
func mtrrs() []uint32 {
	return []uint32{
		0x250, 0x258, 0x259, // 64 KiB and 16 KiB ranges
		0x268, 0x269, 0x26a, 0x26b, 0x26c, 0x26d, 0x26e, 0x26f, // 4 KiB ranges
		0x200, 0x201, 0x202, 0x203, 0x204, 0x205, 0x206, 0x207, // base and mask of each variable range
		0x208, 0x209, 0x20a, 0x20b, 0x20c, 0x20d, 0x20e, 0x20f,
		msrMTRRLast, // IA32_MTRR_DEF_TYPE, which enables the other MTRRs
	}
}

// feature is one bit of a CPUID leaf.
type feature struct {
	function, index uint32
	reg             register
	bit             uint8
}

// The result is true if the entries show the feature f.
func (f feature) in(entries []Entry) bool {
	return word(entries, featureWord{function: f.function, index: f.index, reg: f.reg})>>f.bit&1 == 1
}

// msrFeatures returns the features that the MSR m belongs to. A guest that sees one of these
// features may have used the MSR. If every guest has the MSR, msrFeatures returns nil.
func msrFeatures(m uint32) []feature {
	switch m {
	case MSRTSCAdjust:
		return []feature{{leafExtended, 0, regEBX, 1}}
	case msrSpecCtrl: // spec_ctrl, stibp, ssbd of Intel; ibrs, stibp, ssbd of AMD
		return []feature{
			{leafExtended, 0, regEDX, 26}, {leafExtended, 0, regEDX, 27}, {leafExtended, 0, regEDX, 31},
			{leafAddress, 0, regEBX, 14}, {leafAddress, 0, regEBX, 15}, {leafAddress, 0, regEBX, 24},
		}
	case msrVirtSpecCtrl:
		return []feature{{leafAddress, 0, regEBX, 25}}
	case msrArchCaps, msrTSXCtrl: // IA32_ARCH_CAPABILITIES also announces the TSX control MSR
		return []feature{{leafExtended, 0, regEDX, 29}}
	case msrUMWAITControl:
		return []feature{{leafExtended, 0, regECX, 5}}
	case msrXSS:
		return []feature{{leafXSAVE, 1, regEAX, 3}}
	case msrTSCAux: // rdtscp, rdpid
		return []feature{{leafExtFeatures, 0, regEDX, 27}, {leafExtended, 0, regECX, 22}}
	case msrKVMClock:
		return []feature{{leafKVMFeatures, 0, regEAX, 3}}
	case msrKVMStealTime:
		return []feature{{leafKVMFeatures, 0, regEAX, 5}}
	case msrKVMEOI:
		return []feature{{leafKVMFeatures, 0, regEAX, 6}}
	case msrKVMPoll:
		return []feature{{leafKVMFeatures, 0, regEAX, 12}}
	}
	if m >= msrMTRRFirst && m <= msrMTRRLast && m != msrPAT {
		return []feature{{leafFeatures, 0, regEDX, 12}}
	}
	return nil
}
