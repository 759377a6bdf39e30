package machine

import (
	"fmt"
	"slices"

	"github.com/forkd/forkd/internal/vmm/cpuid"
	"github.com/forkd/forkd/internal/vmm/kvm"
)

// savedMSRs returns the MSRs that a save reads: the MSRs that KVM supports and that the vCPUs may
// have used. It asks KVM only at the first save, because most forks are never saved.
func (m *Machine) savedMSRs() ([]uint32, error) {
	if m.msrs != nil {
		return m.msrs, nil
	}
	supported, err := m.cfg.KVM.MSRIndices()
	if err != nil {
		return nil, err
	}
	list := cpuid.SavedMSRs(supported)
	for _, entries := range m.cpuid {
		list = cpuid.ShownMSRs(list, toTemplate(entries))
	}
	m.msrs = list
	return list, nil
}

// readMSRs reads the MSRs with the given indices. It omits MSRs that this host does not have.
func readMSRs(c *kvm.VCPU, indices []uint32) ([]kvm.MSREntry, error) {
	entries := make([]kvm.MSREntry, len(indices))
	for i, index := range indices {
		entries[i].Index = index
	}
	var have []kvm.MSREntry
	for len(entries) > 0 {
		n, err := c.MSRs(entries)
		if err != nil {
			return nil, err
		}
		have = append(have, entries[:n]...)
		entries = entries[min(n+1, len(entries)):] // skip entries[n], which KVM does not know
	}
	return have, nil
}

func msrNumbers(entries []kvm.MSREntry) []uint32 {
	numbers := make([]uint32, len(entries))
	for i, e := range entries {
		numbers[i] = e.Index
	}
	return numbers
}

// writeMSRs sets the MSRs. It returns an error if the host refuses an MSR.
func writeMSRs(c *kvm.VCPU, entries []kvm.MSREntry) error {
	n, err := c.SetMSRs(entries)
	if err == nil && n < len(entries) {
		err = fmt.Errorf("host refuses MSR %#x = %#x", entries[n].Index, entries[n].Data)
	}
	return err
}

// findMSR returns the entry of an MSR, or nil.
func findMSR(entries []kvm.MSREntry, index uint32) *kvm.MSREntry {
	i := slices.IndexFunc(entries, func(e kvm.MSREntry) bool { return e.Index == index })
	if i < 0 {
		return nil
	}
	return &entries[i]
}

// verifyMSRs writes the saved MSRs back to the vCPUs. If this host refuses one of them, every
// restore would fail. So the error of verifyMSRs, which names the MSR, prevents the snapshot.
// verifyMSRs does not write the TSC, because the counter would go back to its saved value.
//
// Preconditions: the machine is paused.
func (m *Machine) verifyMSRs() error {
	msrs, err := m.savedMSRs()
	if err != nil {
		return err
	}
	for i, c := range m.cpus.all {
		entries, err := readMSRs(c.kvm, msrs)
		if err != nil {
			return err
		}
		entries = slices.DeleteFunc(entries, func(e kvm.MSREntry) bool { return e.Index == cpuid.MSRTSC })
		if err := writeMSRs(c.kvm, entries); err != nil {
			return fmt.Errorf("vCPU %d could not be restored: %w", i, err)
		}
	}
	return nil
}

// checkArchCaps returns an error if the guest has chosen its mitigations on another host and would
// lack one of them on this host. KVM itself accepts any value of the MSR.
func (m *Machine) checkArchCaps(saved []kvm.MSREntry) error {
	shown := findMSR(saved, cpuid.MSRArchCapabilities)
	if shown == nil {
		return nil // the guest cannot read the MSR
	}
	host, _, err := m.cfg.KVM.FeatureMSR(cpuid.MSRArchCapabilities) // zero if the host lacks the MSR
	if err != nil {
		return err
	}
	return cpuid.CompatibleArchCaps(shown.Data, host)
}
