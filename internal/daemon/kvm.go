package daemon

import (
	"sync"
	"time"
)

// How long a result of a probe is used, if the result may change.
const (
	// For the result that no VM can run. It is short, so that the daemon notices a module that is
	// loaded later without a restart. Probing takes only tens of milliseconds.
	kvmAgain = 5 * time.Second

	// For a probe that did not answer in time. Until the next probe, KVM is assumed to work. It is
	// long, because a busy host may delay each probe by seconds, and requests wait for the probe.
	kvmUnsure = time.Minute
)

// kvmState caches whether VMs can run on this host. If it is certain that VMs can run, this result
// is kept for ever. After any other result, the host is probed again after a while. A nil *kvmState
// assumes that VMs can run. Its methods may be called concurrently.
type kvmState struct {
	probe func() (sure bool, reason error)

	mu     sync.Mutex
	fit    bool
	reason error
	until  time.Time
}

// why returns the reason why no VM can run; nil if VMs can run.
func (k *kvmState) why() error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fit || time.Now().Before(k.until) {
		return k.reason
	}
	sure, reason := k.probe()
	holds := kvmAgain
	if reason == nil {
		holds = kvmUnsure
	}
	k.reason, k.fit, k.until = reason, reason == nil && sure, time.Now().Add(holds)
	return reason
}
