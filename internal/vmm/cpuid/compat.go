package cpuid

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/forkd/forkd/internal/proto/vm"
)

// IncompatibleError reports that the host lacks a feature that the guest of a snapshot has found.
type IncompatibleError struct {
	Feature string // name of the feature in /proc/cpuinfo, if it has one
	Have    string // the host's value; empty if the feature is missing
}

// Error names the feature, and says how to avoid the error.
func (e *IncompatibleError) Error() string {
	if e.Have != "" {
		return fmt.Sprintf("this host's cpu does not fit the snapshot: it has %s, the snapshot was taken with %s: "+
			"restore on such a host, or bake the snapshot again here", e.Have, e.Feature)
	}
	return fmt.Sprintf("this host's cpu does not fit the snapshot: it lacks %s: restore on a host that has it, or bake the "+
		"snapshot again with cpu template %q", e.Feature, vm.TemplatePortable)
}

// Compatible returns an *IncompatibleError if this host cannot run a vCPU whose guest has read the
// saved CPUID entries. The second parameter has the entries that this host supports. Compatible
// compares features, the layout of the XSAVE area and the width of physical addresses. It ignores
// the model, caches and names, because guests only display these.
func Compatible(saved, host []Entry) error {
	if err := sameVendor(saved, host); err != nil {
		return err
	}
	for _, w := range featureWords() {
		have, want := word(host, w)|w.emulated, word(saved, w)
		if missing := want &^ have; missing != 0 {
			return &IncompatibleError{Feature: w.name(missing)}
		}
	}
	if err := sameXSAVE(saved, host); err != nil {
		return err
	}
	if s, h := physBits(saved), physBits(host); s > h {
		return &IncompatibleError{Feature: fmt.Sprintf("%d-bit physical addresses", s), Have: fmt.Sprintf("%d-bit ones", h)}
	}
	return nil
}

func sameVendor(saved, host []Entry) error {
	s, h := vendor(saved), vendor(host)
	if s == "" || h == "" {
		return fmt.Errorf("cpuid entries lack leaf 0: the snapshot or the host's list is damaged")
	}
	if s != h {
		return &IncompatibleError{Feature: "vendor " + s, Have: "vendor " + h}
	}
	return nil
}

// vendor returns the vendor string of leaf 0, without unprintable characters.
func vendor(entries []Entry) string {
	e := find(entries, leafVendor, 0)
	if e == nil {
		return ""
	}
	b := binary.LittleEndian.AppendUint32(nil, e.EBX)
	b = binary.LittleEndian.AppendUint32(b, e.EDX)
	b = binary.LittleEndian.AppendUint32(b, e.ECX)
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, string(b))
}

func physBits(entries []Entry) uint32 {
	if e := find(entries, leafAddress, 0); e != nil {
		return e.EAX & 0xff
	}
	return 36 // the width if there is no such leaf, Intel SDM vol. 3 §4.1.4
}

// sameXSAVE compares the size and the offset of each extended state component that the guest may
// use. Sizes and offsets must be the same on both hosts, because the guest's kernel and programs
// use the saved layout.
func sameXSAVE(saved, host []Entry) error {
	x := find(saved, leafXSAVE, 0)
	if x == nil {
		return nil
	}
	for i := uint32(2); i < 32; i++ {
		if x.EAX>>i&1 == 0 {
			continue
		}
		size, off := component(saved, i)
		hostSize, hostOff := component(host, i)
		if size != hostSize || off != hostOff {
			return &IncompatibleError{
				Feature: fmt.Sprintf("xsave component %d in %d bytes at %d", i, size, off),
				Have:    fmt.Sprintf("it in %d bytes at %d", hostSize, hostOff),
			}
		}
	}
	return nil
}

// component returns the size and the offset, in bytes, of an extended state component in the
// standard XSAVE format.
func component(entries []Entry, i uint32) (size, off uint32) {
	if e := find(entries, leafXSAVE, i); e != nil {
		return e.EAX, e.EBX
	}
	return 0, 0
}

// register is one of the four output registers of CPUID.
type register uint8

const (
	regEAX register = iota
	regEBX
	regECX
	regEDX
)

// featureWord is an output register of a CPUID leaf. Every bit of the register is a feature.
type featureWord struct {
	function, index uint32
	reg             register
	emulated        uint32 // bits that KVM provides on every host
	names           string // names of the bits from bit 0 on, separated by blanks; "-" for a bit without a name
}

// word returns the bits of w, or zero if the entries lack the leaf.
func word(entries []Entry, w featureWord) uint32 {
	e := find(entries, w.function, w.index)
	if e == nil {
		return 0
	}
	return [...]uint32{e.EAX, e.EBX, e.ECX, e.EDX}[w.reg]
}

// name returns the names of the bits in mask.
func (w featureWord) name(mask uint32) string {
	known := strings.Fields(w.names)
	var list []string
	for bit := range 32 {
		switch {
		case mask>>bit&1 == 0:
		case bit < len(known) && known[bit] != "-":
			list = append(list, known[bit])
		default:
			reg := [...]string{"eax", "ebx", "ecx", "edx"}[w.reg]
			list = append(list, fmt.Sprintf("cpuid %#x.%d %s bit %d", w.function, w.index, reg, bit))
		}
	}
	return strings.Join(list, ", ")
}

// featureWords lists the features that Compatible compares.
func featureWords() []featureWord {
	const (
		emulated1ECX = bitX2APIC | bitTSCDeadline | 1<<27 | bitHypervisor // 1<<27 is OSXSAVE, which follows the guest's CR4
		emulated1EDX = bitAPIC | bitHTT
	)
	return []featureWord{
		{leafFeatures, 0, regECX, emulated1ECX, "sse3 pclmulqdq dtes64 monitor ds_cpl vmx smx est tm2 ssse3 cid sdbg fma " +
			"cx16 xtpr pdcm - pcid dca sse4_1 sse4_2 x2apic movbe popcnt tsc_deadline_timer aes xsave osxsave avx f16c rdrand hypervisor"},
		{leafFeatures, 0, regEDX, emulated1EDX,
			"fpu vme de pse tsc msr pae mce cx8 apic - sep mtrr pge mca cmov pat pse36 pn " +
				"clflush - dts acpi mmx fxsr sse sse2 ss ht tm ia64 pbe"},
		{leafExtended, 0, regEBX, 0, "fsgsbase tsc_adjust sgx bmi1 hle avx2 fdp_excptn_only smep bmi2 erms invpcid rtm cqm " +
			"zero_fcs_fds mpx rdt_a avx512f avx512dq rdseed adx smap avx512ifma - clflushopt clwb intel_pt avx512pf avx512er " +
			"avx512cd sha_ni avx512bw avx512vl"},
		{leafExtended, 0, regECX, 1 << 4, "prefetchwt1 avx512vbmi umip pku ospke waitpkg avx512_vbmi2 shstk gfni vaes " +
			"vpclmulqdq avx512_vnni avx512_bitalg tme avx512_vpopcntdq - la57 - - - - - rdpid - bus_lock_detect cldemote - " +
			"movdiri movdir64b enqcmd sgx_lc pks"}, // bit 4, OSPKE, follows the guest's CR4
		{leafExtended, 0, regEDX, 0,
			"- - avx512_4vnniw avx512_4fmaps fsrm - - - avx512_vp2intersect srbds_ctrl md_clear - - " +
				"tsx_force_abort serialize hybrid tsxldtrk - pconfig arch_lbr ibt - amx_bf16 avx512_fp16 amx_tile amx_int8 spec_ctrl " +
				"stibp flush_l1d arch_capabilities core_capabilities ssbd"},
		{leafExtended, 1, regEAX, 0, "sha512 sm3 sm4 - avx_vnni avx512_bf16 lass cmpccxadd - - fzrm fsrs fsrc"},
		{leafExtended, 1, regEDX, 0, ""},
		{leafExtended, 2, regEDX, 0, "psfd ipred_ctrl rrsba_ctrl ddpd_u bhi_ctrl mcdt_no"},
		{leafXSAVE, 0, regEAX, 0, "x87-state sse-state avx-state bndregs-state bndcsr-state opmask-state zmm-hi256-state " +
			"hi16-zmm-state - pkru-state - - - - - - - xtilecfg-state xtiledata-state"},
		{leafXSAVE, 1, regEAX, 0, "xsaveopt xsavec xgetbv1 xsaves xfd"},
		{leafXSAVE, 1, regECX, 0, ""},
		{leafKVMFeatures, 0, regEAX, 0, "kvm_clocksource kvm_nop_io_delay kvm_mmu_op kvm_clocksource2 kvm_async_pf " +
			"kvm_steal_time kvm_pv_eoi kvm_pv_unhalt - kvm_pv_tlb_flush kvm_async_pf_vmexit kvm_pv_send_ipi kvm_poll_control " +
			"kvm_pv_sched_yield kvm_async_pf_int kvm_msi_ext_dest_id kvm_hc_map_gpa_range kvm_migration_control - - - - - - " +
			"kvm_clocksource_stable"},
		{leafExtFeatures, 0, regECX, 0,
			"lahf_lm cmp_legacy svm extapic cr8_legacy abm sse4a misalignsse 3dnowprefetch osvw ibs " +
				"xop skinit wdt - lwp fma4 tce - nodeid_msr - tbm topoext perfctr_core perfctr_nb - bpext ptsc perfctr_llc mwaitx"},
		{leafExtFeatures, 0, regEDX, 0,
			"fpu vme de pse tsc msr pae mce cx8 apic - syscall mtrr pge mca cmov pat pse36 - - nx - " +
				"mmxext mmx fxsr fxsr_opt pdpe1gb rdtscp - lm 3dnowext 3dnow"},
		{leafAddress, 0, regEBX, 0,
			"clzero irperf xsaveerptr - rdpru - - - - wbnoinvd - - ibpb - ibrs stibp - stibp_always_on " +
				"- - - - - amd_ppin ssbd virt_ssbd ssb_no cppc - - btc_no"},
		{leafExtended2, 0, regEAX, 0, "no_nested_data_bp - lfence_rdtsc - - - null_sel_clr_base - autoibrs"},
	}
}
