package v1

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/agentclient"
)

// held tracks the commands whose answers are lines of JSON. Such a command is killed when its
// answer ends, unless it was detached before.
type held struct {
	mu     sync.Mutex
	detach map[heldProcess]context.CancelCauseFunc
}

type heldProcess struct {
	sandbox string
	pid     uint32
}

// hold registers a command. To end the command's answer, letGo calls cancel. The caller calls the
// returned function when the command has ended.
func (h *held) hold(sandbox string, pid uint32, cancel context.CancelCauseFunc) (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	of := heldProcess{sandbox, pid}
	h.detach[of] = cancel
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.detach, of)
	}
}

// letGo ends the answer of a command and leaves the command running. It returns false if there is
// no such answer.
func (h *held) letGo(sandbox string, pid uint32) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	of := heldProcess{sandbox, pid}
	cancel := h.detach[of]
	if cancel == nil {
		return false
	}
	delete(h.detach, of) // before the answer ends, so that a second request finds nothing to detach
	cancel(agentclient.ErrDetached)
	return true
}

func (a *api) detachProcess(r *http.Request) error {
	pid, err := pidOf(r)
	if err != nil {
		return err
	}
	if _, err := a.view(r).Sandbox(r.PathValue("id")); err != nil {
		return err
	}
	if !a.held.letGo(r.PathValue("id"), pid) {
		return face.NewError(http.StatusConflict, fmt.Sprintf(
			"process %d: no exec that answers in lines holds it: it is detached, a WebSocket holds it, or it has ended",
			pid))
	}
	return nil
}
