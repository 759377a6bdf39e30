package cpuid

import (
	"fmt"
	"strings"
)

// MSRArchCapabilities is IA32_ARCH_CAPABILITIES (Intel SDM vol. 4, table 2-2). Each bit announces
// that the processor is immune to a vulnerability, or that it offers a mitigation. A guest reads
// the register only once, at boot, and then chooses its mitigations.
const MSRArchCapabilities = msrArchCaps

// archCapsWorse are the bits that announce a weakness, unlike all other bits. RSBA and RRSBA mean
// that the processor may predict returns without the return stack buffer.
const archCapsWorse = 1<<2 | 1<<19

// archCapsNames are the names of the bits from bit 0 on, separated by blanks. For a bit without a
// name, the list has "-".
const archCapsNames = "rdcl_no ibrs_all rsba skip_l1dfl_vmentry ssb_no mds_no pschange_mc_no tsx_ctrl taa_no mcu_control " +
	"misc_package_ctls energy_filtering_ctl doitm sbdr_ssdp_no fbsdp_no psdp_no mcu_enumeration fb_clear fb_clear_ctrl rrsba " +
	"bhi_no xapic_disable_status mcu_extended_service overclocking_status pbrsb_no gds_ctrl gds_no rfds_no rfds_clear " +
	"ign_umonitor_support mon_umon_mitg_support"

// CompatibleArchCaps returns an *IncompatibleError if a guest would lack a mitigation on this host.
// The first argument is the value of IA32_ARCH_CAPABILITIES that the guest has read, and the second
// argument is the host's value.
func CompatibleArchCaps(saved, host uint64) error {
	if missing := saved &^ host &^ archCapsWorse; missing != 0 {
		return &IncompatibleError{Feature: "arch_capabilities " + archCapsName(missing)}
	}
	if weak := host &^ saved & archCapsWorse; weak != 0 {
		return &IncompatibleError{Feature: "no arch_capabilities " + archCapsName(weak), Have: archCapsName(weak)}
	}
	return nil
}

func archCapsName(mask uint64) string {
	known := strings.Fields(archCapsNames)
	var list []string
	for bit := range 64 {
		switch {
		case mask>>bit&1 == 0:
		case bit == 62:
			list = append(list, "its_no")
		case bit < len(known):
			list = append(list, known[bit])
		default:
			list = append(list, fmt.Sprintf("bit %d", bit))
		}
	}
	return strings.Join(list, ", ")
}
