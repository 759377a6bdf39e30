package machine

import (
	"fmt"

	"github.com/forkd/forkd/internal/cpuid"
	"github.com/forkd/forkd/internal/kvm"
)

// msrIndices lists the MSRs that a save reads.
func (m *Machine) msrIndices() ([]uint32, error) {
	supported, err := m.cfg.KVM.MSRIndices()
	if err != nil {
		return nil, err
	}
	return cpuid.SavedMSRs(supported), nil
}

// readMSRs reads those of the MSRs that this host has.
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
		entries = entries[min(n+1, len(entries)):] // entries[n] is the one KVM does not know
	}
	return have, nil
}

// writeMSRs sets all of the MSRs or fails.
func writeMSRs(c *kvm.VCPU, entries []kvm.MSREntry) error {
	n, err := c.SetMSRs(entries)
	if err == nil && n < len(entries) {
		err = fmt.Errorf("host refuses MSR %#x = %#x", entries[n].Index, entries[n].Data)
	}
	return err
}
