package stack

import (
	"os"
	"sync"

	"github.com/forkd/forkd/internal/linger"
)

// ends has, for each sandbox, the closed frame sockets whose data the VM has not read completely.
// The kernel counts this data as memory of this process.
type ends struct {
	mu sync.Mutex
	of map[string]*linger.Set // nil until the first socket is closed
}

// close closes a frame socket of a sandbox. When the socket no longer contains data, gone() is
// called.
func (e *ends) close(id string, end *os.File, gone func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.of == nil {
		e.of = make(map[string]*linger.Set)
	}
	if e.of[id] == nil {
		e.of[id] = &linger.Set{}
	}
	_ = e.of[id].Close(end, gone)
	e.heldLocked(id)
}

// Held returns how many closed frame sockets of a sandbox contain data that its VM has not read.
func (h *Host) Held(id string) int {
	h.ends.mu.Lock()
	defer h.ends.mu.Unlock()
	return h.ends.heldLocked(id)
}

// SweepEnds forgets the sandboxes whose VMs no longer hold a closed frame socket.
func (h *Host) SweepEnds() {
	h.ends.mu.Lock()
	defer h.ends.mu.Unlock()
	for id := range h.ends.of {
		h.ends.heldLocked(id)
	}
}

func (e *ends) heldLocked(id string) int {
	set := e.of[id]
	if set == nil {
		return 0
	}
	held := set.Held()
	if held == 0 {
		delete(e.of, id)
	}
	return held
}
