package cpuid

import (
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
)

// CheckSaved accepts the entries that this build shows to guests. It refuses all other entries, and
// its error names the leaf.
func TestSavedEntriesAreThoseOfATemplate(t *testing.T) {
	for _, template := range []string{vm.TemplateHost, vm.TemplatePortable, vm.TemplateV2} {
		for _, host := range [][]Entry{intel(), amd()} {
			for vcpu := range 3 {
				shown := apply(t, template, host, vcpu, 3)
				if err := CheckSaved(template, shown, vcpu, 3); err != nil {
					t.Errorf("%s: its own entries are refused: %v", template, err)
				}
			}
			for leaf, change := range map[string]func(e []Entry) []Entry{
				"leaf 0x8000000a": func(e []Entry) []Entry { return append(e, Entry{Function: leafSVM, EAX: 1}) },
				"leaf 0xa.0":      func(e []Entry) []Entry { return append(e, Entry{Function: leafPMU, EAX: 5}) },
				"leaf 0x1.0":      func(e []Entry) []Entry { find(e, leafFeatures, 0).ECX |= bitVMX; return e },
				"leaf 0x7.0": func(e []Entry) []Entry {
					find(e, leafExtended, 0).EDX |= 1 << 24 // amx_tile
					return e
				},
				"leaf 0xb.1": func(e []Entry) []Entry { find(e, leafTopology, 1).EBX = 200; return e },
				"cpuid leaves": func(e []Entry) []Entry {
					return slices.DeleteFunc(e, func(e Entry) bool { return e.Function == leafTopology })
				},
			} {
				err := CheckSaved(template, change(apply(t, template, host, 0, 3)), 0, 3)
				if err == nil || !strings.Contains(err.Error(), leaf) {
					t.Errorf("%s: want %q in %v", template, leaf, err)
				}
			}
		}
	}
}

func TestSavedMSRsAreThoseThatAreSaved(t *testing.T) {
	entries := apply(t, vm.TemplatePortable, intel(), 0, 1)
	saved := ShownMSRs(SavedMSRs(slices.Concat(savedMSRs(), timeMSRs())), entries)
	if err := CheckSavedMSRs(saved, entries); err != nil {
		t.Errorf("its own registers are refused: %v", err)
	}
	for want, list := range map[string][]uint32{
		"MSR 0x9e":       append(slices.Clone(saved), 0x9e),       // SMBASE
		"MSR 0x4b564d02": append(slices.Clone(saved), 0x4b564d02), // asynchronous page faults
		"MSR 0x122":      append(slices.Clone(saved), msrTSXCtrl), // the template hides the bit that announces this MSR
		"twice":          append(slices.Clone(saved), saved[0]),
	} {
		if err := CheckSavedMSRs(list, entries); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
}
