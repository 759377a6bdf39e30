package daemon

import (
	"sync"
	"time"
)

// kvmAgain is how long the reason why no VM can run is taken to be true. It takes tens of
// milliseconds to find out, and a module that somebody loads should not want a new daemon.
const kvmAgain = 5 * time.Second

// kvmState knows whether VMs can run on this host: once they can, for good, and else since when it
// was found that they cannot. A nil *kvmState has not been asked, and takes it that they can. Its
// methods may be called concurrently.
type kvmState struct {
	probe func() error

	mu     sync.Mutex
	fit    bool
	reason error
	asked  time.Time
}

// why returns why no VM can run, nil if they can.
func (k *kvmState) why() error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.fit && (k.asked.IsZero() || time.Since(k.asked) > kvmAgain) {
		k.reason = k.probe()
		k.fit, k.asked = k.reason == nil, time.Now()
	}
	return k.reason
}
