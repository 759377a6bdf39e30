package machine

import (
	"errors"
	"testing"

	"github.com/forkd/forkd/internal/vmm/cpuid"
	"github.com/forkd/forkd/internal/vmm/kvm"
	"github.com/forkd/forkd/internal/vmtest"
)

// A guest is refused if it has read that the processor is immune to a vulnerability, and this
// host's processor is not immune. A guest that cannot read the MSR is accepted.
func TestArchCapabilitiesAreComparedWithTheHosts(t *testing.T) {
	vmtest.NeedKVM(t)
	sys, err := kvm.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close()
	m := &Machine{cfg: Config{KVM: sys}}
	host, _, err := sys.FeatureMSR(cpuid.MSRArchCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("IA32_ARCH_CAPABILITIES is %#x here", host)
	const future = 1 << 61 // no processor has this bit
	other := kvm.MSREntry{Index: 0x174, Data: future}
	for _, saved := range [][]kvm.MSREntry{{other}, {other, {Index: cpuid.MSRArchCapabilities, Data: host}}} {
		if err := m.checkArchCaps(saved); err != nil {
			t.Errorf("%x: %v", saved, err)
		}
	}
	err = m.checkArchCaps([]kvm.MSREntry{other, {Index: cpuid.MSRArchCapabilities, Data: host | future}})
	var inc *cpuid.IncompatibleError
	if !errors.As(err, &inc) {
		t.Errorf("a guest that was shown more than the host has: %v", err)
	}
}
