package vmpool

import (
	"log/slog"
	"sync"
	"time"
)

// maxEnding is the maximum number of VMs that were killed but have not ended, and for which no
// caller waits. A VM keeps its memory until it has ended, so without a maximum a client that makes
// and kills sandboxes could use the memory of any number of VMs.
const maxEnding = 64

// Killer kills VMs. The kernel needs milliseconds to end the process of a VM, and longer if the VM has
// much memory.
type Killer struct {
	log *slog.Logger

	mu sync.Mutex
	// +checklocks:mu
	ending map[VMM]bool // VMs that KillSoon has killed, and that may not have ended yet
}

// NewKiller returns a Killer that logs VMs that do not end.
func NewKiller(log *slog.Logger) *Killer { return &Killer{log: log, ending: make(map[VMM]bool)} }

// Kill kills the VM of a sandbox, and waits for its end. It only logs an error: nothing helps against a
// process that survives SIGKILL, and the caller must release everything else in any case.
func (k *Killer) Kill(sandbox string, v VMM) {
	if err := v.Kill(); err != nil {
		k.log.Error("end a VMM", "sandbox", sandbox, "pid", v.PID(), "error", err)
	}
}

// KillSoon is like Kill, but usually does not wait for the end of the VM. When it returns, the VM
// gets no more processor time, and its directory is gone, so that a daemon that starts now does not
// find the VM. If too many VMs are ending already, KillSoon waits.
func (k *Killer) KillSoon(sandbox string, v VMM) {
	k.mu.Lock()
	soon := len(k.ending) < maxEnding
	if soon {
		k.ending[v] = true
	}
	k.mu.Unlock()
	if !soon || v.KillSoon() != nil {
		k.end(sandbox, v)
		return
	}
	go k.end(sandbox, v)
}

func (k *Killer) end(sandbox string, v VMM) {
	k.Kill(sandbox, v)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.ending, v)
}

// endingTime is how long Wait waits. It is long enough for the kernel to free a hundred GiB.
const endingTime = 10 * time.Second

// Wait waits for the end of all VMs that KillSoon has killed before the call, but for at most
// endingTime. It returns false if there were no such VMs.
func (k *Killer) Wait() bool {
	k.mu.Lock()
	var all []VMM
	for v := range k.ending {
		all = append(all, v)
	}
	k.mu.Unlock()
	late := time.After(endingTime)
	for _, v := range all {
		select {
		case <-v.Done():
		case <-late:
			return true
		}
	}
	return len(all) > 0
}
