package cpuid

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
)

const allOnes = 0xffffffff

// hostEntries returns the entries of a host that has every feature. The parameters are the
// registers that contain the vendor string.
func hostEntries(ebx, edx, ecx uint32) []Entry {
	e := []Entry{
		{Function: leafVendor, EAX: 0x20, EBX: ebx, ECX: ecx, EDX: edx},
		{Function: leafFeatures, EAX: 0x806f8, EBX: 0x2a100800, ECX: allOnes, EDX: allOnes},
		{Function: leafCache, Index: 0, Flags: FlagIndexed, EAX: 0x7c004121},
		{Function: leafCache, Index: 3, Flags: FlagIndexed, EAX: 0x7c1fc163},
		{Function: leafCache, Index: 4, Flags: FlagIndexed},
		{Function: leafMonitor, EAX: 64},
		{Function: leafExtended, Index: 0, Flags: FlagIndexed, EAX: 2, EBX: allOnes, ECX: allOnes, EDX: allOnes},
		{Function: leafExtended, Index: 1, Flags: FlagIndexed, EAX: allOnes, EDX: allOnes},
		{Function: leafPMU, EAX: 5},
		{Function: leafTopology, Index: 0, Flags: FlagIndexed, EAX: 1, EBX: 2, ECX: 1 << 8, EDX: 42},
		{Function: leafTopology, Index: 1, Flags: FlagIndexed, EAX: 6, EBX: 64, ECX: 2<<8 | 1, EDX: 42},
		{Function: leafXSAVE, Index: 0, Flags: FlagIndexed, EAX: 0x602e7, EBX: 2696, ECX: 11008},
		{Function: leafXSAVE, Index: 1, Flags: FlagIndexed, EAX: 0x1f, ECX: allOnes},
		{Function: leafXSAVE, Index: 2, Flags: FlagIndexed, EAX: 256, EBX: 576},
		{Function: leafXSAVE, Index: 5, Flags: FlagIndexed, EAX: 64, EBX: 1088},
		{Function: leafXSAVE, Index: 6, Flags: FlagIndexed, EAX: 512, EBX: 1152},
		{Function: leafXSAVE, Index: 7, Flags: FlagIndexed, EAX: 1024, EBX: 1664},
		{Function: leafTSC, EAX: 2, EBX: 208, ECX: 25000000},
		{Function: leafTopologyV2, Index: 0, Flags: FlagIndexed, EAX: 1, EBX: 2, ECX: 1 << 8, EDX: 42},
		{Function: leafKVM, EAX: leafKVMFeatures, EBX: 0x4b4d564b, ECX: 0x564b4d56, EDX: 0x4d},
		{Function: leafKVMFeatures, EAX: 0x01007efb},
		{Function: leafExtMax, EAX: leafExtended2},
		{Function: leafExtFeatures, ECX: allOnes, EDX: allOnes},
		{Function: leafPower, EDX: 1 << 8},
		{Function: leafAddress, EAX: 0x343934, EBX: allOnes, ECX: 0x703f},
		{Function: leafSVM, EAX: 1, EBX: 16},
		{Function: leafTopologyAMD, EAX: 42, EBX: 0x115, ECX: 0x101},
		{Function: leafExtended2, EAX: allOnes},
	}
	return e
}

func intel() []Entry { return hostEntries(vendorIntelEBX, 0x49656e69, 0x6c65746e) }
func amd() []Entry   { return hostEntries(0x68747541, 0x69746e65, 0x444d4163) }

func apply(t *testing.T, template string, supported []Entry, vcpu, vcpus int) []Entry {
	t.Helper()
	e, err := Apply(template, supported, vcpu, vcpus)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestApplyErrors(t *testing.T) {
	for name, f := range map[string]func() ([]Entry, error){
		"unknown template": func() ([]Entry, error) { return Apply("t2", intel(), 0, 1) },
		"no template":      func() ([]Entry, error) { return Apply("", intel(), 0, 1) },
		"no vCPU":          func() ([]Entry, error) { return Apply(vm.TemplateHost, intel(), 0, 0) },
		"vCPU too high":    func() ([]Entry, error) { return Apply(vm.TemplateHost, intel(), 2, 2) },
		"no entries":       func() ([]Entry, error) { return Apply(vm.TemplateHost, nil, 0, 1) },
		"no leaf 1":        func() ([]Entry, error) { return Apply(vm.TemplateHost, intel()[:1], 0, 1) },
	} {
		if _, err := f(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestApplyLeavesItsInputAlone(t *testing.T) {
	in := intel()
	for _, template := range vm.Templates() {
		apply(t, template, in, 1, 4)
		if !reflect.DeepEqual(in, intel()) {
			t.Fatalf("%s changed the supported entries", template)
		}
	}
}

// TestBareEntries applies the templates to a host that has only the entries that Apply requires.
func TestBareEntries(t *testing.T) {
	for _, template := range vm.Templates() {
		e := apply(t, template, []Entry{{Function: leafVendor, EAX: 1}, {Function: leafFeatures}}, 0, 1)
		if f := find(e, leafFeatures, 0); f.ECX&bitHypervisor == 0 || f.ECX&bitTSCDeadline == 0 {
			t.Errorf("%s: leaf 1 ecx %#x", template, f.ECX)
		}
	}
}

func TestTopology(t *testing.T) {
	for _, host := range [][]Entry{intel(), amd()} {
		const vcpus = 6 // needs 3 bits of the APIC identifier
		for vcpu := range uint32(vcpus) {
			e := apply(t, vm.TemplateHost, host, int(vcpu), vcpus)
			f := find(e, leafFeatures, 0)
			if f.EBX>>24 != vcpu || f.EBX>>16&0xff != 8 || f.EBX&0xffff != 0x0800 || f.EDX&bitHTT == 0 {
				t.Errorf("vCPU %d: leaf 1 ebx %#x edx %#x", vcpu, f.EBX, f.EDX)
			}
			smt, core, end := find(e, leafTopology, 0), find(e, leafTopology, 1), find(e, leafTopology, 2)
			if smt == nil || core == nil || end == nil {
				t.Fatalf("vCPU %d: leaf 0xb is incomplete", vcpu)
			}
			if smt.EAX != 0 || smt.EBX != 1 || core.EAX != 3 || core.EBX != vcpus || end.ECX>>8 != 0 {
				t.Errorf("vCPU %d: leaf 0xb %+v %+v %+v", vcpu, smt, core, end)
			}
			if smt.EDX != vcpu || core.EDX != vcpu || find(e, leafTopologyAMD, 0).EAX != vcpu {
				t.Errorf("vCPU %d: x2APIC identifiers %d, %d, %d", vcpu, smt.EDX, core.EDX, find(e, leafTopologyAMD, 0).EAX)
			}
			if find(e, leafTopologyV2, 0) != nil {
				t.Errorf("vCPU %d: the host's leaf 0x1f is still there", vcpu)
			}
		}
	}
	if f := find(apply(t, vm.TemplateHost, intel(), 0, 1), leafFeatures, 0); f.EDX&bitHTT != 0 {
		t.Error("one vCPU claims to have siblings")
	}
}

func TestCachesAreSharedAsTheTopologySays(t *testing.T) {
	e := apply(t, vm.TemplateHost, intel(), 0, 4)
	if c := find(e, leafCache, 0); c.EAX>>14&0xfff != 0 || c.EAX>>26 != 3 || c.EAX&0x3fff != 0x0121 {
		t.Errorf("first level: eax %#x", c.EAX)
	}
	if c := find(e, leafCache, 3); c.EAX>>14&0xfff != 3 {
		t.Errorf("third level: eax %#x", c.EAX)
	}
}

func TestHostTemplateHidesWhatIsNotSaved(t *testing.T) {
	e := apply(t, vm.TemplateHost, amd(), 0, 2)
	for _, leaf := range []uint32{leafMonitor, leafPMU, leafSVM} {
		if find(e, leaf, 0) != nil {
			t.Errorf("leaf %#x is still there", leaf)
		}
	}
	if f := find(e, leafFeatures, 0); f.ECX&(bitVMX|bitMonitor|bitPDCM) != 0 {
		t.Errorf("leaf 1 ecx %#x", f.ECX)
	}
	if find(e, leafPower, 0).EDX != 0 || find(e, leafExtFeatures, 0).ECX&(1<<2) != 0 {
		t.Error("invariant tsc or svm is visible")
	}
	if f := find(e, leafKVMFeatures, 0); f.EAX&(1<<4|1<<10|1<<14) != 0 || f.EAX&(1<<3) == 0 {
		t.Errorf("kvm features %#x", f.EAX)
	}
	if find(e, leafExtended, 0).EBX&(1<<16) == 0 {
		t.Error("avx512f is hidden by the host template")
	}
	if find(e, leafExtended, 0).EDX&(1<<24) != 0 || find(e, leafXSAVE, 0).EAX != 0x2e7 {
		t.Error("amx is visible")
	}
	if x := find(e, leafXSAVE, 1).ECX; x&xssUnsaved != 0 {
		t.Errorf("xss %#x", x)
	}
}

// Features that this package does not know are hidden, because it is possible that snapshots do not
// contain their state.
func TestHostTemplateShowsOnlyWhatItKnows(t *testing.T) {
	future := append(intel(),
		Entry{Function: leafXSAVE, Index: 9, Flags: FlagIndexed, EAX: 8, EBX: 2688},
		Entry{Function: leafXSAVE, Index: 19, Flags: FlagIndexed, EAX: 128, EBX: 960}, // APX
		Entry{Function: leafXSAVE, Index: 40, Flags: FlagIndexed, EAX: 128},
		Entry{Function: leafExtended, Index: 3, Flags: FlagIndexed, EAX: allOnes},
		Entry{Function: 0x24, Index: 0, Flags: FlagIndexed, EBX: allOnes}, Entry{Function: 0x80000030, EAX: allOnes},
		Entry{Function: 0xc0000001, EDX: allOnes})
	find(future, leafXSAVE, 0).EAX, find(future, leafXSAVE, 0).EDX = allOnes, allOnes
	e := apply(t, vm.TemplateHost, future, 0, 2)
	for _, c := range e {
		known := c.Function <= hostMaxLeaf || c.Function >= leafKVM && c.Function <= leafKVMFeatures ||
			c.Function >= leafExtMax && c.Function <= hostMaxExtLeaf
		if !known || c.Function == 0x24 || c.Function == leafExtended && c.Index > 2 {
			t.Errorf("leaf %#x.%d is visible", c.Function, c.Index)
		}
		if c.Function == leafXSAVE && c.Index > 1 && hostXCR0>>c.Index&1 == 0 {
			t.Errorf("xsave component %d is visible", c.Index)
		}
	}
	x, x1 := find(e, leafXSAVE, 0), find(e, leafXSAVE, 1)
	if x.EAX != 0x2e7 || x.EDX != 0 || x.ECX != 2696 || x.EBX != 2696 {
		t.Errorf("leaf 0xd: %+v, want the components 0x2e7 in 2696 bytes", x)
	}
	if x1.EAX != 0xf || x1.ECX != 0 || x1.EDX != 0 {
		t.Errorf("leaf 0xd.1: %+v, want nothing in XSS", x1)
	}
	f, f1 := find(e, leafExtended, 0), find(e, leafExtended, 1)
	if f.ECX&(1<<7|1<<23|1<<24|1<<29|1<<31) != 0 || f.EDX&(1<<13|1<<15|1<<18|1<<30) != 0 {
		t.Errorf("leaf 7 ecx %#x edx %#x", f.ECX, f.EDX)
	}
	const fred, lkgs, apx, avx10, cetSSS = 1 << 17, 1 << 18, 1 << 21, 1 << 19, 1 << 18
	if f1.EAX&(fred|lkgs) != 0 || f1.EDX&(apx|avx10|cetSSS) != 0 || f1.EBX != 0 || f1.ECX != 0 {
		t.Errorf("leaf 7.1: %+v", f1)
	}
	if f.EBX&(1<<5|1<<16|1<<30|1<<31) != 1<<5|1<<16|1<<30|1<<31 || f.ECX&(1<<3) == 0 {
		t.Error("avx2, avx512 or pku is hidden")
	}
}

func TestPortableTemplate(t *testing.T) {
	e := apply(t, vm.TemplatePortable, intel(), 0, 2)
	f7 := find(e, leafExtended, 0)
	if f7.EBX&(1<<5) == 0 || f7.EBX&(1<<16|1<<11|1<<9|1<<29) != 0 || f7.ECX != 0 || f7.EDX&(1<<29) != 0 {
		t.Errorf("leaf 7: %+v", f7)
	}
	if find(e, leafExtended, 1) != nil || find(e, leafTSC, 0) != nil || find(e, leafExtended2, 0) != nil {
		t.Error("leaves beyond the baseline are still there")
	}
	x := find(e, leafXSAVE, 0)
	if x.EAX != portableXCR0 || x.ECX != portableXBytes || x.EBX != portableXBytes || find(e, leafXSAVE, 5) != nil {
		t.Errorf("leaf 0xd: %+v", x)
	}
	if p := physBits(e); p != portablePhysBits {
		t.Errorf("%d physical address bits", p)
	}
	if f := find(e, leafKVMFeatures, 0); f == nil || f.EAX&(1<<3) == 0 {
		t.Error("kvm-clock is gone")
	}
	if find(e, leafKVM, 0) == nil {
		t.Error("the hypervisor's signature is gone")
	}
	if find(e, leafVendor, 0).EAX != portableMaxLeaf || find(e, leafExtMax, 0).EAX != portableMaxExtLeaf {
		t.Error("maximum leaves")
	}
}

// clearBits applies the function f to one leaf of the entries, and returns the entries.
func clearBits(entries []Entry, leaf, index uint32, f func(e *Entry)) []Entry {
	f(find(entries, leaf, index))
	return entries
}

func TestCompatible(t *testing.T) {
	for _, template := range []string{vm.TemplateHost, vm.TemplatePortable} {
		for _, host := range [][]Entry{intel(), amd()} {
			saved := apply(t, template, host, 1, 4)
			if err := Compatible(saved, host); err != nil {
				t.Errorf("%s: raw entries of the same host: %v", template, err)
			}
			if err := Compatible(saved, apply(t, template, host, 0, 1)); err != nil {
				t.Errorf("%s: applied entries of the same host: %v", template, err)
			}
		}
	}
	hostSaved, portable := apply(t, vm.TemplateHost, intel(), 0, 1), apply(t, vm.TemplatePortable, intel(), 0, 1)
	for name, tc := range map[string]struct {
		saved, host []Entry
		want        string
	}{
		"avx512f": {hostSaved, clearBits(intel(), leafExtended, 0, func(e *Entry) { e.EBX &^= 1 << 16 }), "lacks avx512f"},
		"two": {hostSaved, clearBits(intel(), leafExtended, 0, func(e *Entry) {
			e.EBX &^= 1<<16 | 1<<5
		}), "avx2, avx512f"},
		"popcnt": {portable, clearBits(intel(), leafFeatures, 0, func(e *Entry) { e.ECX &^= 1 << 23 }), "lacks popcnt"},
		"nx":     {portable, clearBits(intel(), leafExtFeatures, 0, func(e *Entry) { e.EDX &^= 1 << 20 }), "lacks nx"},
		"no name": {intel(), clearBits(intel(), leafExtended, 1, func(e *Entry) {
			e.EDX &^= 1 << 3
		}), "cpuid 0x7.1 edx bit 3"},
		"clock":   {portable, clearBits(intel(), leafKVMFeatures, 0, func(e *Entry) { e.EAX = 0 }), "kvm_clocksource2"},
		"vendor":  {portable, amd(), "vendor GenuineIntel"},
		"address": {hostSaved, clearBits(intel(), leafAddress, 0, func(e *Entry) { e.EAX = 39 }), "52-bit physical"},
		"layout":  {hostSaved, clearBits(intel(), leafXSAVE, 6, func(e *Entry) { e.EBX = 960 }), "xsave component 6"},
	} {
		err := Compatible(tc.saved, tc.host)
		var inc *IncompatibleError
		if !errors.As(err, &inc) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want an IncompatibleError with %q", name, err, tc.want)
		}
	}
	// With the portable template, a snapshot from a newer host can run on an older host.
	old := clearBits(intel(), leafExtended, 0, func(e *Entry) { e.EBX &^= 0xffff << 16 &^ portable7EBX; e.ECX = 0 })
	if err := Compatible(portable, old); err != nil {
		t.Errorf("portable snapshot on an older host: %v", err)
	}
	for _, pair := range [][2][]Entry{{nil, intel()}, {intel(), nil}, {nil, nil}} {
		if Compatible(pair[0], pair[1]) == nil {
			t.Error("entries without leaf 0 are compatible")
		}
	}
}

// TestFeatureNames checks the names of some well-known bits. If a table lacked a name, all names
// after it would be wrong.
func TestFeatureNames(t *testing.T) {
	last := map[string]bool{}
	for _, w := range featureWords() {
		if n := len(strings.Fields(w.names)); n > 32 {
			t.Errorf("leaf %#x has %d names", w.function, n)
		}
		last[w.name(1<<31)] = true
	}
	for _, want := range []string{"hypervisor", "pbe", "avx512vl", "pks", "ssbd", "3dnow"} {
		if !last[want] {
			t.Errorf("no word has bit 31 named %s", want)
		}
	}
	for _, tc := range []struct {
		leaf, index uint32
		reg         register
		bit         int
		want        string
	}{
		{leafFeatures, 0, regEDX, 25, "sse"}, {leafExtended, 0, regECX, 22, "rdpid"},
		{leafExtended, 0, regEDX, 26, "spec_ctrl"},
		{leafExtFeatures, 0, regECX, 22, "topoext"}, {leafExtFeatures, 0, regEDX, 29, "lm"},
		{leafAddress, 0, regEBX, 12, "ibpb"},
		{leafAddress, 0, regEBX, 24, "ssbd"}, {leafXSAVE, 0, regEAX, 18, "xtiledata-state"},
		{leafXSAVE, 0, regEAX, 9, "pkru-state"},
		{leafKVMFeatures, 0, regEAX, 24, "kvm_clocksource_stable"}, {leafExtended, 1, regEAX, 4, "avx_vnni"},
		{leafExtended2, 0, regEAX, 6, "null_sel_clr_base"},
	} {
		i := slices.IndexFunc(featureWords(), func(w featureWord) bool {
			return w.function == tc.leaf && w.index == tc.index && w.reg == tc.reg
		})
		if got := featureWords()[i].name(1 << tc.bit); got != tc.want {
			t.Errorf("leaf %#x.%d register %d bit %d is %q, want %q", tc.leaf, tc.index, tc.reg, tc.bit, got, tc.want)
		}
	}
}

func TestSavedMSRs(t *testing.T) {
	all := append(slices.Clone(savedMSRs()), timeMSRs()...)
	slices.Reverse(all) // the order in the kernel's list must not matter
	got := SavedMSRs(append(all, 0x11, 0x12345))
	if len(got) != len(all)+len(mtrrs()) {
		t.Errorf("%d registers, want %d", len(got), len(all)+len(mtrrs()))
	}
	seen := map[uint32]bool{}
	for _, m := range got {
		if seen[m] {
			t.Errorf("register %#x is listed twice", m)
		}
		seen[m] = true
	}
	if seen[0x11] || seen[0x12345] {
		t.Error("a register that is not to be saved is in the list")
	}
	if tsc, deadline := slices.Index(got, MSRTSC), slices.Index(got, MSRTSCDeadline); tsc < 0 || deadline < tsc {
		t.Errorf("TSC at %d, deadline at %d", tsc, deadline)
	}
	if got := SavedMSRs(nil); slices.Contains(got, MSRTSC) {
		t.Error("a register that KVM does not support is in the list")
	}
}

func TestShownMSRs(t *testing.T) {
	all := SavedMSRs(append(savedMSRs(), timeMSRs()...))
	host := ShownMSRs(all, apply(t, vm.TemplateHost, intel(), 0, 1))
	if !slices.Equal(host, all) {
		t.Errorf("a guest that sees everything saves %d of %d registers", len(host), len(all))
	}
	portable := ShownMSRs(all, apply(t, vm.TemplatePortable, intel(), 0, 1))
	for _, m := range []uint32{msrXSS, msrArchCaps, msrTSXCtrl, msrUMWAITControl, msrVirtSpecCtrl} {
		if slices.Contains(portable, m) {
			t.Errorf("register %#x of a hidden feature is saved", m)
		}
	}
	for _, m := range []uint32{MSRTSC, MSRTSCDeadline, msrPAT, msrMTRRLast, msrSpecCtrl, msrKVMClock, msrTSCAux,
		0xc0000082} {
		if !slices.Contains(portable, m) {
			t.Errorf("register %#x is not saved", m)
		}
	}
	bare := ShownMSRs(all, []Entry{{Function: leafVendor}, {Function: leafFeatures}})
	if slices.Contains(bare, msrKVMClock) || slices.Contains(bare, msrMTRRLast) || !slices.Contains(bare, MSRTSC) {
		t.Errorf("a guest that sees nothing saves %#x", bare)
	}
}
