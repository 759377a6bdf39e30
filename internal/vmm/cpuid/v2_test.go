package cpuid

import (
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
)

func TestV2HidesXSAVEAndWhatNeedsIt(t *testing.T) {
	supported := []Entry{
		{Function: leafVendor, EAX: 0x1f},
		{Function: leafFeatures, EAX: 0x800f12, ECX: 0xffffffff, EDX: 0xffffffff},
		{Function: leafExtended, Flags: FlagIndexed, EBX: 0xffffffff},
		{Function: leafXSAVE, Flags: FlagIndexed, EAX: 7, EBX: 832, ECX: 832},
		{Function: leafXSAVE, Index: 2, Flags: FlagIndexed, EAX: 256, EBX: 576},
	}
	got, err := Apply(vm.TemplateV2, supported, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	f, x := find(got, leafFeatures, 0), find(got, leafExtended, 0)
	if f.ECX&v2Hidden1ECX != 0 || x.EBX&v2Hidden7EBX != 0 {
		t.Fatalf("leaf 1 ECX %#x, leaf 7 EBX %#x still show features above x86-64-v2", f.ECX, x.EBX)
	}
	if f.ECX&(1<<20|1<<23) != 1<<20|1<<23 {
		t.Fatalf("leaf 1 ECX %#x lacks SSE4.2 or POPCNT", f.ECX)
	}
	if find(got, leafXSAVE, 0) != nil {
		t.Fatal("the XSAVE leaf is still there")
	}
}
