package cpuid

// Features of the any-vendor template: the features of the portable template that Intel and AMD
// both have, and that a guest uses in the same way on both.
const (
	shared1EDX   = portable1EDX &^ (1 << 1)              // vme serves 16-bit programs only, and QEMU lacks it
	shared7EDX   = portable7EDX &^ (1 << 10)             // md_clear is Intel's
	sharedExtECX = 1<<0 | 1<<5 | 1<<8                    // lahf_lm abm 3dnowprefetch
	sharedExtEDX = 1<<11 | 1<<20 | 1<<26 | 1<<27 | 1<<29 // syscall nx pdpe1gb rdtscp lm
	shared8EBX   = 1 << 12                               // ibpb, which KVM also shows on Intel
	sharedKVM    = portableKVM &^ (1<<7 | 1<<11 | 1<<13) // without pv_unhalt, pv_send_ipi, pv_sched_yield
	sharedMaxExt = leafAddress
)

// anyVendor returns the entries of a processor that looks the same on hosts of Intel and AMD: an
// Intel Skylake-SP. The entries in e come from maskPortable or maskV2. Of their features, anyVendor
// keeps those that both vendors have.
//
// The guest sees Intel as the vendor. Linux then chooses the mitigations for an Intel processor
// with every vulnerability. They include separate page tables for the kernel. A guest that was
// booted as AMD would lack these mitigations on an Intel host. A guest on an AMD host lacks the
// mitigations that only AMD's processors need (docs/architecture.md §10).
//
// The features of sharedKVM need no hypercall. Intel and AMD have different instructions for
// hypercalls, and Linux chooses one of them at boot.
func anyVendor(e []Entry) []Entry {
	has := func(function uint32, r register, mask uint32) uint32 {
		return word(e, featureWord{function: function, reg: r}) & mask
	}
	out := []Entry{
		{Function: leafVendor, EAX: portableMaxLeaf, EBX: vendorIntelEBX, ECX: 0x6c65746e, EDX: 0x49656e69}, // GenuineIntel
		// Family 6, model 85, stepping 4; CLFLUSH flushes 64 bytes.
		{Function: leafFeatures, EAX: 0x50654, EBX: 8 << 8,
			ECX: has(leafFeatures, regECX, portable1ECX), EDX: has(leafFeatures, regEDX, shared1EDX)},
		{Function: 0x2, EAX: 0xff01}, // the descriptor 0xff refers to leaf 4
		// The caches of Skylake-SP: 32 KiB for data and for code, 1 MiB, and 16 MiB, with lines of 64 bytes. EBX has
		// the number of ways, and ECX the number of sets, both minus one.
		{Function: leafCache, Index: 0, Flags: FlagIndexed, EAX: 0x121, EBX: 7<<22 | 63, ECX: 63},
		{Function: leafCache, Index: 1, Flags: FlagIndexed, EAX: 0x122, EBX: 7<<22 | 63, ECX: 63},
		{Function: leafCache, Index: 2, Flags: FlagIndexed, EAX: 0x143, EBX: 15<<22 | 63, ECX: 1023},
		{Function: leafCache, Index: 3, Flags: FlagIndexed, EAX: 0x163, EBX: 15<<22 | 63, ECX: 16383},
		{Function: leafCache, Index: 4, Flags: FlagIndexed},
		{Function: leafThermal, EAX: hostPowerEAX}, // KVM's APIC timer runs in every power state
		{Function: leafExtended, Flags: FlagIndexed,
			EBX: has(leafExtended, regEBX, portable7EBX), EDX: has(leafExtended, regEDX, shared7EDX)},
		{Function: leafKVM, EAX: leafKVMFeatures, EBX: 0x4b4d564b, ECX: 0x564b4d56, EDX: 0x4d}, // KVMKVMKVM
		{Function: leafKVMFeatures, EAX: has(leafKVMFeatures, regEAX, sharedKVM)},
		{Function: leafExtMax, EAX: sharedMaxExt},
		{Function: leafExtFeatures,
			ECX: has(leafExtFeatures, regECX, sharedExtECX), EDX: has(leafExtFeatures, regEDX, sharedExtEDX)},
		// The name is "forkd any-vendor processor", in three leaves.
		{Function: 0x80000002, EAX: 0x6b726f66, EBX: 0x6e612064, ECX: 0x65762d79, EDX: 0x726f646e},
		{Function: 0x80000003, EAX: 0x6f727020, EBX: 0x73736563, ECX: 0x0000726f},
		{Function: 0x80000004},
		{Function: 0x80000006, ECX: 1024<<16 | 8<<12 | 64}, // L2: KiB, code for 16 ways, bytes of a line
		{Function: leafAddress, EAX: 48<<8 | min(physBits(e), portablePhysBits), EBX: has(leafAddress, regEBX, shared8EBX)},
	}
	if find(e, leafXSAVE, 0) == nil {
		return out
	}
	return append(out,
		Entry{Function: leafXSAVE, Index: 0, Flags: FlagIndexed, EAX: has(leafXSAVE, regEAX, portableXCR0),
			EBX: portableXBytes, ECX: portableXBytes},
		Entry{Function: leafXSAVE, Index: 1, Flags: FlagIndexed,
			EAX: word(e, featureWord{function: leafXSAVE, index: 1, reg: regEAX}) & portableXSAVE},
		// The AVX state: 256 bytes behind the legacy area and the header.
		Entry{Function: leafXSAVE, Index: 2, Flags: FlagIndexed, EAX: 256, EBX: 512 + 64})
}
