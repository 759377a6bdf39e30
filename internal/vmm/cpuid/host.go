package cpuid

// Features that the host template passes on from the host. A listed feature needs no state, or a
// snapshot contains its state. The list must be explicit, because a feature of a newer processor
// may have registers that snapshots do not contain. A guest would lose the values of such registers
// in every fork. For this reason the list excludes FRED, APX, AVX10, key locker, protection keys
// for supervisor pages, ENQCMD, bus lock detection (DEBUGCTL), and interrupts and MSR accesses at
// user level, all of which KVM may offer.
const (
	// hostXCR0 is x87, SSE, AVX, the three AVX-512 components and PKRU. The 4 KiB form of
	// KVM_GET_XSAVE holds all of them.
	hostXCR0  = 0x2e7
	hostXSAVE = 1<<0 | 1<<1 | 1<<2 | 1<<3 // xsaveopt xsavec xgetbv1 xsaves; no component in XSS

	host7ECX = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<6 | // prefetchwt1 avx512vbmi umip pku ospke waitpkg vbmi2
		1<<8 | 1<<9 | 1<<10 | 1<<11 | 1<<12 | 1<<14 | // gfni vaes vpclmulqdq avx512_vnni avx512_bitalg avx512_vpopcntdq
		1<<16 | 1<<22 | 1<<25 | 1<<27 | 1<<28 // la57 rdpid cldemote movdiri movdir64b
	host7EDX = 1<<2 | 1<<3 | 1<<4 | 1<<8 | 1<<10 | // avx512_4vnniw avx512_4fmaps fsrm avx512_vp2intersect md_clear
		1<<14 | 1<<16 | 1<<23 | // serialize tsxldtrk avx512_fp16
		1<<26 | 1<<27 | 1<<28 | 1<<29 | 1<<31 // spec_ctrl stibp flush_l1d arch_capabilities ssbd

	host71EAX = 1<<0 | 1<<1 | 1<<2 | 1<<4 | 1<<5 | 1<<7 | // sha512 sm3 sm4 avx_vnni avx512_bf16 cmpccxadd
		1<<10 | 1<<11 | 1<<12 | 1<<23 // fzrm fsrs fsrc avx_ifma
	host71EDX = 1<<4 | 1<<5 | 1<<10 | 1<<14             // avx_vnni_int8 avx_ne_convert avx_vnni_int16 prefetchiti
	host72EDX = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 // controls in SPEC_CTRL, which snapshots contain; mcdt_no

	hostPowerEAX = 1 << 2 // arat

	// lahf_lm cmp_legacy cr8_legacy abm sse4a misalignsse 3dnowprefetch
	hostExtECX = 1<<0 | 1<<1 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8 |
		1<<11 | 1<<16 | 1<<21 | 1<<22 // xop fma4 tbm topoext
	host8EBX = 1<<0 | 1<<2 | 1<<9 | 1<<12 | 1<<14 | 1<<15 | // clzero xsaveerptr wbnoinvd ibpb ibrs stibp
		1<<16 | 1<<17 | 1<<18 | 1<<19 | // usage hints for ibrs and stibp
		1<<24 | 1<<25 | 1<<26 | 1<<28 | 1<<29 | 1<<30 // ssbd virt_ssbd ssb_no psfd btc_no ibpb_ret
	host21EAX = 1<<0 | 1<<2 | 1<<6 | 1<<8 | // no_nested_data_bp lfence_rdtsc null_sel_clr_base autoibrs (in EFER)
		1<<27 | 1<<28 | 1<<29 | 1<<30 // sbpb ibpb_brtype srso_no srso_user_kernel_no

	hostMaxLeaf    = leafTopologyV2
	hostMaxExtLeaf = leafTopologyExt
)

// maskHost returns a copy of the entries, without the features that the host template does not pass
// on.
func maskHost(entries []Entry) []Entry {
	out := make([]Entry, 0, len(entries))
	for _, c := range entries {
		if hostLeaf(&c) {
			out = append(out, c)
		}
	}
	sizeXSAVE(out)
	return out
}

// hostLeaf does the work of maskHost for one entry. It reports whether the entry stays.
func hostLeaf(c *Entry) bool {
	switch c.Function {
	case leafVendor:
		c.EAX = min(c.EAX, hostMaxLeaf)
	case leafExtMax:
		c.EAX = min(c.EAX, hostMaxExtLeaf)
	case leafFeatures, 0x2, leafCache, leafTopology, leafTopologyV2, leafTSC, leafFrequency, leafKVM,
		0x80000002, 0x80000003, 0x80000004, 0x80000005, 0x80000006, // brand string, caches
		0x80000019, 0x8000001a, leafCacheAMD, leafTopologyAMD, leafTopologyExt:
		// These leaves pass unchanged. maskUnsaved handles every bit of leaf 1, and the other
		// leaves only describe the processor.
	case leafThermal:
		c.EAX, c.EBX, c.ECX, c.EDX = c.EAX&hostPowerEAX, 0, 0, 0
	case leafExtended:
		return hostExtendedLeaf(c)
	case leafXSAVE:
		return hostXSAVELeaf(c)
	case leafKVMFeatures:
		c.EAX, c.EDX = c.EAX&portableKVM, 0
	case leafExtFeatures:
		c.ECX &= hostExtECX
	case leafPower:
		c.EAX, c.EBX, c.ECX, c.EDX = 0, 0, 0, 0
	case leafAddress:
		c.EBX, c.EDX = c.EBX&host8EBX, 0
	case leafExtended2:
		c.EAX, c.EBX, c.ECX, c.EDX = c.EAX&host21EAX, 0, 0, 0
	default:
		return false
	}
	return true
}

func hostExtendedLeaf(c *Entry) bool {
	switch c.Index {
	case 0:
		c.EAX, c.ECX, c.EDX = min(c.EAX, 2), c.ECX&host7ECX, c.EDX&host7EDX
	case 1:
		c.EAX, c.EBX, c.ECX, c.EDX = c.EAX&host71EAX, 0, 0, c.EDX&host71EDX
	case 2:
		c.EAX, c.EBX, c.ECX, c.EDX = 0, 0, 0, c.EDX&host72EDX
	default:
		return false
	}
	return true
}

func hostXSAVELeaf(c *Entry) bool {
	switch {
	case c.Index == 0:
		c.EAX, c.EDX = c.EAX&hostXCR0, 0
	case c.Index == 1:
		c.EAX, c.ECX, c.EDX = c.EAX&hostXSAVE, 0, 0
	default:
		return c.Index < 32 && 1<<c.Index&hostXCR0 != 0
	}
	return true
}

// sizeXSAVE sets the size of the XSAVE area to the size that the remaining components need.
func sizeXSAVE(entries []Entry) {
	x := find(entries, leafXSAVE, 0)
	if x == nil {
		return
	}
	size := uint32(512 + 64) // legacy area and header
	for i := uint32(2); i < 32; i++ {
		if n, off := component(entries, i); x.EAX>>i&1 == 1 {
			size = max(size, off+n)
		}
	}
	x.EBX, x.ECX = size, size // EBX depends on the guest's XCR0, and KVM updates it
}
