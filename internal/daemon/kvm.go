package daemon

import (
	"sync"
	"time"
)

// How long a preliminary answer is valid.
const (
	// For a reason why no VM can run. Probing takes tens of milliseconds, and loading a missing
	// module should not require a restart of the daemon.
	kvmAgain = 5 * time.Second

	// For a probe that did not answer in time; KVM is then assumed to work. The next probe delays
	// requests by seconds if the host is still that busy.
	kvmUnsure = time.Minute
)

// kvmState caches whether VMs can run on this host. Once they certainly can, it never probes again;
// other answers expire. A nil *kvmState assumes that they can. Its methods may be called
// concurrently.
type kvmState struct {
	probe func() (sure bool, reason error)

	mu     sync.Mutex
	fit    bool
	reason error
	until  time.Time
}

// why returns why no VM can run, or nil if VMs can.
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
