// Package cpuid decides which processor a guest sees. It derives the CPUID entries of a vCPU from
// the entries that KVM supports on this host. It checks whether a host can run a guest that has
// already read its entries. It also lists the MSRs that belong to a vCPU's saved state.
//
// The package only computes. Package machine executes CPUID and calls KVM. Bit positions are those
// of the Intel SDM vol. 2A (CPUID) and the AMD APM vol. 3 appendix E. Paravirtual leaves are those
// of Documentation/virt/kvm/x86/cpuid.rst in Linux.
package cpuid

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/forkd/forkd/internal/proto/vm"
)

// Entry is one CPUID leaf, or one of its subleaves. Its fields are those of KVM's struct
// kvm_cpuid_entry2.
type Entry struct {
	Function, Index, Flags uint32
	EAX, EBX, ECX, EDX     uint32
}

// FlagIndexed marks an entry that is selected by ECX in addition to EAX
// (KVM_CPUID_FLAG_SIGNIFCANT_INDEX).
const FlagIndexed = 1 << 0

// Leaves that have a name in this package.
const (
	leafVendor      = 0x0
	leafFeatures    = 0x1
	leafCache       = 0x4 // Intel
	leafMonitor     = 0x5
	leafThermal     = 0x6
	leafExtended    = 0x7
	leafPMU         = 0xa
	leafTopology    = 0xb
	leafXSAVE       = 0xd
	leafSGX         = 0x12
	leafPT          = 0x14
	leafTSC         = 0x15
	leafFrequency   = 0x16
	leafLBR         = 0x1c
	leafTiles       = 0x1d
	leafTileMul     = 0x1e
	leafTopologyV2  = 0x1f
	leafKVM         = 0x40000000
	leafKVMFeatures = 0x40000001
	leafExtMax      = 0x80000000
	leafExtFeatures = 0x80000001
	leafPower       = 0x80000007
	leafAddress     = 0x80000008
	leafSVM         = 0x8000000a
	leafIBS         = 0x8000001b
	leafCacheAMD    = 0x8000001d
	leafTopologyAMD = 0x8000001e
	leafSEV         = 0x8000001f
	leafExtended2   = 0x80000021
	leafPMUAMD      = 0x80000022
	leafTopologyExt = 0x80000026 // AMD's counterpart of leaf 0x1f
)

// Apply returns the CPUID entries of the vCPU with the number vcpu, in a machine with vcpus vCPUs.
// Apply derives the result from the supported entries (KVM_GET_SUPPORTED_CPUID), and hides the
// features that the template excludes. It does not change the supported entries. Each vCPU is one
// core of one socket, and the vCPU's number is its local APIC identifier. A snapshot records the
// result.
func Apply(template string, supported []Entry, vcpu, vcpus int) ([]Entry, error) {
	if vcpus < 1 || vcpu < 0 || vcpu >= vcpus {
		return nil, fmt.Errorf("cpuid: vCPU %d of %d does not exist", vcpu, vcpus)
	}
	for _, leaf := range []uint32{leafVendor, leafFeatures} {
		if find(supported, leaf, 0) == nil {
			return nil, fmt.Errorf("cpuid: the host's entries lack leaf %#x", leaf)
		}
	}
	var e []Entry
	switch template {
	case vm.TemplateHost:
		e = maskHost(supported)
	case vm.TemplatePortable:
		e = maskPortable(supported)
	case vm.TemplateV2:
		e = maskV2(supported)
	case vm.TemplateAnyVendor:
		e = anyVendor(maskPortable(supported))
	case vm.TemplateAnyVendorEmulated:
		e = anyVendor(maskV2(supported))
		find(e, leafFeatures, 0).ECX &^= 1 << 13 // cx16
	default:
		return nil, vm.CheckTemplate(template)
	}
	e = maskUnsaved(e)
	addEmulated(e)
	return setTopology(e, uint32(vcpu), uint32(vcpus)), nil
}

// find returns the entry of a leaf and subleaf, or nil.
func find(entries []Entry, function, index uint32) *Entry {
	for i := range entries {
		if e := &entries[i]; e.Function == function && (e.Index == index || e.Flags&FlagIndexed == 0) {
			return e
		}
	}
	return nil
}

// drop returns the entries without the given leaves.
func drop(entries []Entry, leaves ...uint32) []Entry {
	return slices.DeleteFunc(entries, func(e Entry) bool { return slices.Contains(leaves, e.Function) })
}

// addEmulated adds the features that KVM's in-kernel APIC provides on every host. KVM reports some
// of them only as capabilities (KVM_CAP_TSC_DEADLINE_TIMER). Linux needs the deadline timer.
// Without it, Linux would calibrate the APIC timer with a PIT, which this machine lacks.
func addEmulated(entries []Entry) {
	f := find(entries, leafFeatures, 0)
	f.ECX |= bitX2APIC | bitTSCDeadline | bitHypervisor
	f.EDX |= bitAPIC
}

// vendorIntelEBX is "Genu", the start of Intel's vendor string. If Intel and AMD use different
// layouts, this package uses the layout of AMD for all vendors except Intel.
const vendorIntelEBX = 0x756e6547

// Bits of leaf 1 that this file sets or clears.
const (
	bitDTES64      = 1 << 2
	bitMonitor     = 1 << 3
	bitDSCPL       = 1 << 4
	bitVMX         = 1 << 5
	bitSMX         = 1 << 6
	bitPDCM        = 1 << 15
	bitX2APIC      = 1 << 21
	bitTSCDeadline = 1 << 24
	bitHypervisor  = 1 << 31

	bitAPIC = 1 << 9
	bitDS   = 1 << 21
	bitHTT  = 1 << 28
)

// setTopology rewrites all leaves about a processor's position, because KVM's values describe the
// host CPU on which KVM computed them.
func setTopology(e []Entry, id, vcpus uint32) []Entry {
	shift := uint32(bits.Len32(vcpus - 1)) // number of APIC identifier bits for the core
	slots := uint32(1) << shift

	f := find(e, leafFeatures, 0)
	f.EBX = f.EBX&0x0000ffff | id<<24 | min(slots, 255)<<16
	f.EDX &^= bitHTT
	if vcpus > 1 {
		f.EDX |= bitHTT
	}
	amd := find(e, leafVendor, 0).EBX != vendorIntelEBX
	for i := range e {
		switch c := &e[i]; c.Function {
		case leafCache:
			shareCache(c, slots)
			c.EAX = c.EAX&0x03ffffff | min(slots-1, 63)<<26 // number of cores in the package, minus one
		case leafCacheAMD:
			shareCache(c, slots)
		case leafAddress:
			if amd {
				c.ECX = min(vcpus-1, 255) | shift<<12
			}
		case leafTopologyAMD:
			c.EAX, c.EBX, c.ECX, c.EDX = id, id&0xff, 0, 0 // one thread per core, node 0 of 1
		}
	}
	e = drop(e, leafTopology, leafTopologyV2, leafTopologyExt)
	if find(e, leafVendor, 0).EAX < leafTopology {
		return e
	}
	const smt, core = 1 << 8, 2 << 8 // level types
	return append(e,
		Entry{leafTopology, 0, FlagIndexed, 0, 1, 0 | smt, id},
		Entry{leafTopology, 1, FlagIndexed, shift, vcpus, 1 | core, id},
		Entry{leafTopology, 2, FlagIndexed, 0, 0, 2, id})
}

// shareCache sets how many processors share a cache (bits 14 to 25, minus one). All processors
// share a cache of the third level. Caches of the other levels belong to one processor. Intel and
// AMD use the same format.
func shareCache(c *Entry, slots uint32) {
	sharing := uint32(0)
	if level := c.EAX >> 5 & 7; level >= 3 {
		sharing = min(slots-1, 0xfff)
	}
	if c.EAX&0x1f != 0 { // type 0 ends the list
		c.EAX = c.EAX&^(0xfff<<14) | sharing<<14
	}
}
