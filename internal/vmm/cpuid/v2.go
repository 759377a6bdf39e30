package cpuid

// Features of the portable template that vm.TemplateV2 hides: BMI1, BMI2, and all features that
// need XCR0, the extended control register. Some emulated or nested KVMs do not preserve XCR0 for
// their guests. The guests then lose the upper halves of vector registers.
const (
	v2Hidden1ECX = 1<<12 | 1<<26 | 1<<27 | 1<<28 | 1<<29 // fma xsave osxsave avx f16c
	v2Hidden7EBX = 1<<3 | 1<<5 | 1<<8                    // bmi1 avx2 bmi2: x86-64-v3
)

// maskV2 returns a copy of the entries, without the features that are not in the x86-64-v2
// template.
func maskV2(entries []Entry) []Entry {
	out := drop(maskPortable(entries), leafXSAVE)
	if f := find(out, leafFeatures, 0); f != nil {
		f.ECX &^= v2Hidden1ECX
	}
	if f := find(out, leafExtended, 0); f != nil {
		f.EBX &^= v2Hidden7EBX
	}
	if f := find(out, leafAddress, 0); f != nil {
		f.EBX &^= 1 << 2 // xsaveerptr
	}
	return out
}
