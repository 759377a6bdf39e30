package cpuid

import (
	"slices"
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
)

// Intel and AMD hosts with the same features must show the same processor, and each must accept the
// guests of the other.
func TestAnyVendorIsTheSameOnBothVendors(t *testing.T) {
	for _, template := range []string{vm.TemplateAnyVendor, vm.TemplateAnyVendorEmulated} {
		for vcpu := range 3 {
			onIntel, onAMD := apply(t, template, intel(), vcpu, 3), apply(t, template, amd(), vcpu, 3)
			if !slices.Equal(onIntel, onAMD) {
				t.Errorf("%s: vCPU %d on Intel:\n%#x\non AMD:\n%#x", template, vcpu, onIntel, onAMD)
			}
			if err := CheckSaved(template, onIntel, vcpu, 3); err != nil {
				t.Error(err)
			}
			if vendor(onAMD) != "GenuineIntel" {
				t.Errorf("%s: vendor %q", template, vendor(onAMD))
			}
		}
	}
}

// A feature that only one of the vendors has must be hidden, because a guest on the other vendor's
// host would lose it.
func TestAnyVendorHidesWhatOneVendorHas(t *testing.T) {
	e := apply(t, vm.TemplateAnyVendor, amd(), 0, 1)
	for name, c := range map[string]struct{ have, hidden uint32 }{
		"md_clear":                         {find(e, leafExtended, 0).EDX, 1 << 10},
		"sse4a, misalignsse, topoext":      {find(e, leafExtFeatures, 0).ECX, 1<<6 | 1<<7 | 1<<22},
		"mmxext, fxsr_opt":                 {find(e, leafExtFeatures, 0).EDX, 1<<22 | 1<<25},
		"clzero, xsaveerptr":               {find(e, leafAddress, 0).EBX, 1<<0 | 1<<2},
		"pv_unhalt, send_ipi, sched_yield": {find(e, leafKVMFeatures, 0).EAX, 1<<7 | 1<<11 | 1<<13},
	} {
		if c.have&c.hidden != 0 {
			t.Errorf("%s: %#x", name, c.have&c.hidden)
		}
	}
	if find(e, leafCacheAMD, 0) != nil || find(e, leafTopologyAMD, 0) != nil || find(e, leafExtended2, 0) != nil {
		t.Error("a leaf of AMD is visible")
	}
	f, x := find(e, leafFeatures, 0), find(e, leafExtended, 0)
	if f.ECX&(1<<28) == 0 || x.EBX&(1<<5) == 0 || find(e, leafXSAVE, 2) == nil || x.EDX&(1<<26) == 0 {
		t.Errorf("avx, avx2 or spec_ctrl is missing: leaf 1 ecx %#x, leaf 7 ebx %#x edx %#x", f.ECX, x.EBX, x.EDX)
	}
	if v2 := apply(t, vm.TemplateAnyVendorEmulated, intel(), 0, 1); find(v2, leafXSAVE, 0) != nil ||
		find(v2, leafFeatures, 0).ECX&v2Hidden1ECX != 0 {
		t.Error("any-vendor-emulated shows xsave")
	}
}
