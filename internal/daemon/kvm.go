package daemon

import (
	"sync"
	"time"
)

// How long an answer holds that is not for good.
const (
	// The reason why no VM can run. It takes tens of milliseconds to find out, and a module that
	// somebody loads should not want a new daemon.
	kvmAgain = 5 * time.Second

	// No answer in time, which is taken for fit. Requests wait for the next one, for seconds where
	// the host is still that busy.
	kvmUnsure = time.Minute
)

// kvmState knows whether VMs can run on this host: once they surely can, for good, and else until
// when it need not ask again. A nil *kvmState has not been asked, and takes it that they can. Its
// methods may be called concurrently.
type kvmState struct {
	probe func() (sure bool, reason error)

	mu     sync.Mutex
	fit    bool
	reason error
	until  time.Time
}

// why returns why no VM can run, nil if they can.
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
