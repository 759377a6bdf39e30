package machine

import (
	"fmt"

	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/cpuid"
	"github.com/forkd/forkd/internal/vmm/kvm"
)

// tscTolerance is the difference of TSC rates, in millionths, up to which KVM treats the rates as
// equal (module parameter tsc_tolerance_ppm).
const tscTolerance = 250

// setTSCRate sets the TSC rate of a vCPU to the rate in a snapshot.
func (m *Machine) setTSCRate(c *kvm.VCPU, saved uint32) error {
	host, err := c.TSCKHz()
	if err != nil || host == saved {
		return err
	}
	scaling, err := m.cfg.KVM.Extension(kvm.CapTSCControl)
	if err != nil {
		return err
	}
	if err := checkTSCRate(saved, host, scaling > 0); err != nil {
		return vm.WithCode(vm.ErrCPU, err)
	}
	return c.SetTSCKHz(saved)
}

// checkTSCRate returns an error if the host's CPU cannot run the guest's TSC at the rate that the
// guest has measured. KVM itself refuses the rate only if the host is faster. On a slower host, KVM
// would correct the guest's TSC at every exit, and the TSC would jump.
func checkTSCRate(saved, host uint32, scaling bool) error {
	slack := uint64(host) * tscTolerance / 1e6
	if scaling || uint64(saved)+slack >= uint64(host) && uint64(saved) <= uint64(host)+slack {
		return nil
	}
	return &cpuid.IncompatibleError{
		Feature: fmt.Sprintf("a tsc of %d kHz", saved),
		Have:    fmt.Sprintf("one of %d kHz and no tsc scaling", host),
	}
}

// alignTSC sets the saved TSC of a vCPU to the saved TSC of vCPU 0. Saving many vCPUs may take more
// than a second, and KVM synchronizes TSCs only if they are set to values within a second of each
// other. If the guest itself has made its TSCs different, their TSC_ADJUST registers also differ,
// and alignTSC leaves the TSCs different.
func alignTSC(first, msrs []kvm.MSREntry) {
	from, to := findMSR(first, cpuid.MSRTSC), findMSR(msrs, cpuid.MSRTSC)
	if from == nil || to == nil {
		return
	}
	adjust, own := findMSR(first, cpuid.MSRTSCAdjust), findMSR(msrs, cpuid.MSRTSCAdjust)
	if (adjust == nil) == (own == nil) && (adjust == nil || adjust.Data == own.Data) {
		to.Data = from.Data
	}
}
