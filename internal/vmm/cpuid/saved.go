package cpuid

import (
	"fmt"
	"slices"
)

// CheckSaved checks the CPUID entries of a saved vCPU. It returns an error if the template would
// change these entries. For example, they may show a feature that the template hides because
// snapshots do not contain the state of the feature. A snapshot with such entries is forged, or
// comes from an incompatible build.
func CheckSaved(template string, saved []Entry, vcpu, vcpus int) error {
	want, err := Apply(template, saved, vcpu, vcpus)
	if err != nil {
		return err
	}
	if slices.Equal(want, saved) {
		return nil
	}
	for _, e := range saved {
		if n := slices.IndexFunc(want, func(w Entry) bool { return w.Function == e.Function && w.Index == e.Index }); n < 0 ||
			want[n] != e {
			return fmt.Errorf("the snapshot shows its guest cpuid leaf %#x.%d as {%#x %#x %#x %#x}, which cpu template %q of this "+
				"forkd does not: bake the snapshot again", e.Function, e.Index, e.EAX, e.EBX, e.ECX, e.EDX, template)
		}
	}
	return fmt.Errorf("the snapshot shows its guest %d cpuid leaves, cpu template %q of this forkd makes %d of them: "+
		"bake the snapshot again", len(saved), template, len(want))
}

// CheckSavedMSRs returns an error if an MSR occurs twice, or if this build would not save it for a
// vCPU with these CPUID entries.
func CheckSavedMSRs(saved []uint32, entries []Entry) error {
	known := ShownMSRs(slices.Concat(savedMSRs(), mtrrs(), timeMSRs()), entries)
	for i, m := range saved {
		switch {
		case !slices.Contains(known, m):
			return fmt.Errorf("the snapshot has MSR %#x, which this forkd does not save: bake the snapshot again", m)
		case slices.Contains(saved[:i], m):
			return fmt.Errorf("the snapshot has MSR %#x twice: it is damaged", m)
		}
	}
	return nil
}
