package cpuid

// maskUnsaved hides features in every template, because snapshots do not contain their state, or
// because the machine does not provide them:
//
//   - nested virtualization (VMX, SVM, SMX): the inner guests' state;
//   - performance counters, debug store, branch records, processor trace, IBS: their registers;
//   - memory encryption, of host or guest;
//   - SGX: enclave memory; MPX, shadow stacks and indirect branch tracking: their registers;
//   - AMX, and XFD with it: the tiles do not fit into the 4 KiB form of KVM_GET_XSAVE;
//   - MONITOR/MWAIT: in KVM, they do nothing;
//   - the invariant TSC: for user programs, the bit is a promise that the rate never changes, but a
//     restore on another host may change the rate. Without the bit, the guest's kernel prefers
//     kvm-clock, which KVM corrects;
//   - KVM's asynchronous page faults: a fault in flight while the machine is saved would never
//     complete.
func maskUnsaved(e []Entry) []Entry {
	for i := range e {
		switch c := &e[i]; c.Function {
		case leafFeatures:
			c.ECX &^= bitDTES64 | bitMonitor | bitDSCPL | bitVMX | bitSMX | bitPDCM
			c.EDX &^= bitDS
		case leafExtended:
			switch c.Index {
			case 0:
				c.EBX &^= 1<<2 | 1<<14 | 1<<25                  // sgx mpx intel_pt
				c.ECX &^= 1<<7 | 1<<30                          // shstk sgx_lc
				c.EDX &^= 1<<19 | 1<<20 | 1<<22 | 1<<24 | 1<<25 // arch_lbr ibt amx_bf16 amx_tile amx_int8
			case 1:
				c.EAX &^= 1 << 21 // amx_fp16
				c.EDX &^= 1 << 8  // amx_complex
			}
		case leafXSAVE:
			maskXSAVE(c)
		case leafExtFeatures:
			c.ECX &^= 1<<2 | 1<<10 | 1<<15 | 1<<23 | 1<<24 | 1<<28 // svm ibs lwp perfctr_core perfctr_nb perfctr_llc
		case leafPower:
			c.EDX &^= 1 << 8 // invariant TSC
		case leafKVMFeatures:
			c.EAX &^= 1<<4 | 1<<10 | 1<<14 // async_pf async_pf_vmexit async_pf_int
		}
	}
	return drop(e, leafMonitor, leafPMU, leafSGX, leafPT, leafLBR, leafTiles, leafTileMul, leafSVM, leafIBS, leafSEV,
		leafPMUAMD)
}

// Bits of XCR0 and IA32_XSS, Intel SDM vol. 1 §13.1.
const (
	xcrAVX = 1 << 2
	// xcrUnsaved are the MPX bounds and the AMX tiles.
	xcrUnsaved = 1<<3 | 1<<4 | 1<<17 | 1<<18
	// xssUnsaved are processor trace, CET user and supervisor state, and last branch records.
	xssUnsaved = 1<<8 | 1<<11 | 1<<12 | 1<<15
)

// maskXSAVE removes the state components of the features that maskUnsaved hides.
func maskXSAVE(c *Entry) {
	switch {
	case c.Index == 0:
		c.EAX &^= xcrUnsaved
	case c.Index == 1:
		c.EAX &^= 1 << 4 // xfd
		c.ECX &^= xssUnsaved
	case c.Index < 32 && 1<<c.Index&(xcrUnsaved|xssUnsaved) != 0:
		c.EAX, c.EBX, c.ECX, c.EDX = 0, 0, 0, 0
	}
}

// Features of the portable template. The template has the features of x86-64-v3, and further
// features that all server processors of the vendor have had since Intel Skylake-SP or AMD Zen
// (both 2017), with current microcode. A bit that only one vendor uses is listed if all of that
// vendor's server processors since 2017 have it. A bit is not listed if one of the vendors
// introduced it later (ERMS, PCID and SHA). AVX-512, AMX, TSX, XSAVES and the TSC's frequency
// leaves are not listed either. The guest does not see IA32_ARCH_CAPABILITIES, so it assumes that
// the host has every vulnerability.
const (
	portable1ECX = 1<<0 | 1<<1 | 1<<9 | 1<<12 | 1<<13 | // sse3 pclmulqdq ssse3 fma cx16
		1<<19 | 1<<20 | 1<<21 | 1<<22 | 1<<23 | 1<<24 | 1<<25 | // sse4_1 sse4_2 x2apic movbe popcnt tsc_deadline aes
		1<<26 | 1<<27 | 1<<28 | 1<<29 | 1<<30 | 1<<31 // xsave osxsave avx f16c rdrand hypervisor
	portable1EDX = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | // fpu vme de pse tsc msr pae mce
		1<<8 | 1<<9 | 1<<11 | 1<<12 | 1<<13 | 1<<14 | 1<<15 | // cx8 apic sep mtrr pge mca cmov
		1<<16 | 1<<17 | 1<<19 | 1<<23 | 1<<24 | 1<<25 | 1<<26 | 1<<28 // pat pse36 clfsh mmx fxsr sse sse2 htt
	portable7EBX = 1<<0 | 1<<1 | 1<<3 | 1<<5 | 1<<7 | 1<<8 | // fsgsbase tsc_adjust bmi1 avx2 smep bmi2
		1<<18 | 1<<19 | 1<<20 | 1<<23 // rdseed adx smap clflushopt
	portable7EDX = 1<<10 | 1<<26 | 1<<27 | 1<<31 // md_clear spec_ctrl stibp ssbd

	portableXCR0   = 1<<0 | 1<<1 | xcrAVX // x87, SSE, AVX
	portableXSAVE  = 1<<0 | 1<<1 | 1<<2   // xsaveopt xsavec xgetbv1
	portableXBytes = 512 + 64 + 256       // legacy area, header, AVX state
	portableXMax   = 2                    // highest state component

	// lahf cr8legacy abm sse4a misalignsse prefetchw topoext
	portableExtECX = 1<<0 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8 | 1<<22
	portableExtEDX = portable1EDX&amdShared1EDX |
		1<<11 | 1<<20 | 1<<22 | 1<<25 | 1<<26 | 1<<27 | 1<<29 // syscall nx mmxext fxsr_opt pdpe1gb rdtscp lm
	// amdShared1EDX are the bits that AMD repeats from leaf 1.
	amdShared1EDX = 0x0183f3ff

	portable8EBX = 1<<0 | 1<<2 | 1<<12 // clzero xsaveerptr ibpb

	// portableKVM are the paravirtual features that hosts with Linux 5.10 or later provide:
	// clocksource nop_io_delay clocksource2 steal_time pv_eoi pv_unhalt pv_tlb_flush pv_send_ipi
	// poll_control pv_sched_yield clocksource_stable.
	portableKVM = 1<<0 | 1<<1 | 1<<3 | 1<<5 | 1<<6 | 1<<7 | 1<<9 | 1<<11 | 1<<12 | 1<<13 | 1<<24

	portableMaxLeaf    = leafXSAVE
	portableMaxExtLeaf = leafTopologyAMD
	// portablePhysBits is the width of physical addresses, in bits, of Skylake-SP. The other
	// processors have at least this width.
	portablePhysBits = 46
)

// maskPortable returns a copy of the entries, without the features that are not in the portable
// template, and without leaves that this package does not know.
func maskPortable(entries []Entry) []Entry {
	out := make([]Entry, 0, len(entries))
	for _, c := range entries {
		switch c.Function {
		case leafVendor:
			c.EAX = min(c.EAX, portableMaxLeaf)
		case leafFeatures:
			c.ECX, c.EDX = c.ECX&portable1ECX, c.EDX&portable1EDX
		case leafExtended:
			if c.Index != 0 {
				continue
			}
			c.EAX, c.EBX, c.ECX, c.EDX = 0, c.EBX&portable7EBX, 0, c.EDX&portable7EDX
		case leafXSAVE:
			if c.Index > portableXMax {
				continue
			}
			portableXSAVELeaf(&c)
		case leafExtMax:
			c.EAX = min(c.EAX, portableMaxExtLeaf)
		case leafExtFeatures:
			c.ECX, c.EDX = c.ECX&portableExtECX, c.EDX&portableExtEDX
		case leafPower:
			c.EAX, c.EBX, c.ECX, c.EDX = 0, 0, 0, 0
		case leafAddress:
			// Bits 16 to 23, the address width for nested paging, are cleared, because nested
			// virtualization is hidden.
			c.EAX = c.EAX&0xff00 | min(c.EAX&0xff, portablePhysBits)
			c.EBX, c.EDX = c.EBX&portable8EBX, 0
		case leafKVMFeatures:
			c.EAX &= portableKVM
		case leafTSC, leafFrequency:
			continue
		default:
			if c.Function > portableMaxLeaf && c.Function < leafKVM || c.Function > portableMaxExtLeaf {
				continue
			}
		}
		out = append(out, c)
	}
	return out
}

// portableXSAVELeaf limits an XSAVE leaf to the x87, SSE and AVX state.
func portableXSAVELeaf(c *Entry) {
	switch c.Index {
	case 0:
		c.EAX, c.EDX = c.EAX&portableXCR0, 0
		c.EBX, c.ECX = min(c.EBX, portableXBytes), min(c.ECX, portableXBytes)
	case 1:
		c.EAX, c.EBX, c.ECX, c.EDX = c.EAX&portableXSAVE, 0, 0, 0
	}
}
