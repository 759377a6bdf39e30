package docker

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"syscall"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/owner"
)

// execs has the execs of all containers. They are only in memory: the next daemon does not know
// them, but their processes continue. One client cannot take all places.
type execs struct {
	mu    sync.Mutex
	all   map[string]*exec
	order []*exec // oldest first

	count *gate.Gate // one place per exec
	bytes *gate.Gate // one place per byte
}

func newExecs() *execs {
	return &execs{all: make(map[string]*exec), count: gate.New(maxExecs), bytes: gate.New(maxExecBytes)}
}

// add keeps an exec. If there is no room for it, add forgets other execs. It forgets first those
// that have ended, then those of the same client that were not started, and then those of any
// client that were not started within startWithin. In each of these groups it begins with the
// oldest exec.
func (x *execs) add(e *exec) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	in, by := "container "+e.of.id, owner.FairShare(e.client, maxExecsOfOne)
	by.Key = in + " " + e.client
	e.count = x.count.Hold(owner.FairShare(e.client, maxExecs), gate.Share{Key: in, Most: maxExecsOfOne}, by)
	e.bytes = x.bytes.Hold(owner.FairShare(e.client, maxExecBytes))
	full := e.take()
	for _, mayGo := range []func(old *exec) bool{
		(*exec).hasEnded,
		func(old *exec) bool { return old.client == e.client && !old.hasStarted() },
		func(old *exec) bool { return e.made.Sub(old.made) > startWithin && !old.hasStarted() },
	} {
		for n := 0; n < len(x.order) && full != nil; {
			old := x.order[n]
			ofClient, inOne := old.client == e.client, old.of == e.of
			helps := full.Key == "" || full.Key == e.client && ofClient || full.Key == in && inOne || ofClient && inOne
			if !helps || !mayGo(old) {
				n++
				continue
			}
			x.removeLocked(n)
			full = e.take()
		}
	}
	if full != nil {
		return face.NewError(http.StatusTooManyRequests, "too many execs that have not ended: end some of them")
	}
	x.all[e.id] = e
	x.order = append(x.order, e)
	return nil
}

// take takes the places of an exec, or returns the limit that has been reached.
func (e *exec) take() *gate.FullError {
	err := e.count.Add(1)
	if err == nil {
		if err = e.bytes.Add(e.cmd.size()); err != nil {
			e.count.Leave()
		}
	}
	var full *gate.FullError
	errors.As(err, &full)
	return full
}

// size returns the approximate size of a command in memory.
func (c *command) size() int {
	n := len(c.user) + len(c.dir) + itemSize*(1+len(c.args)+len(c.env))
	for _, arg := range c.args {
		n += len(arg)
	}
	for name, value := range c.env {
		n += len(name) + len(value)
	}
	return n
}

func (x *execs) removeLocked(n int) {
	e := x.order[n]
	delete(x.all, e.id)
	x.order = slices.Delete(x.order, n, n+1)
	e.count.Leave()
	e.bytes.Leave()
}

// ofContainer returns the execs of a container, oldest first.
func (x *execs) ofContainer(id string) (list []*exec) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.order {
		if e.of.id == id {
			list = append(list, e)
		}
	}
	return list
}

// of(id) returns the ids of a container's running execs.
func (x *execs) of(id string) []string {
	ids := []string{}
	for _, e := range x.ofContainer(id) {
		if p := e.process(); p != nil && !e.hasEnded() {
			ids = append(ids, e.id)
		}
	}
	return ids
}

// drop forgets the execs of a container.
func (x *execs) drop(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for n := 0; n < len(x.order); {
		if x.order[n].of.id == id {
			x.removeLocked(n)
		} else {
			n++
		}
	}
}

// running returns the processes of a container's execs that have not ended.
func (x *execs) running(id string) (list []*process) {
	for _, e := range x.ofContainer(id) {
		if p := e.process(); p != nil && !e.hasEnded() {
			list = append(list, p)
		}
	}
	return list
}

// killAll kills processes, until ctx ends.
func killAll(ctx context.Context, list []*process) {
	var kills sync.WaitGroup
	for _, p := range list {
		kills.Go(func() {
			select {
			case <-p.running: // before this, there is no process to kill
			case <-ctx.Done():
			}
			// A kill fails only if the process or the sandbox has ended, or if the guest hangs.
			_ = p.signal(ctx, syscall.SIGKILL)
		})
	}
	kills.Wait()
}
