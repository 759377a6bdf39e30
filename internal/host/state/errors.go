package state

import (
	"fmt"

	"github.com/forkd/forkd/internal/host/excerpt"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Error reports an operation that is not possible in the present state of a sandbox.
type Error struct {
	ID, Op  string
	State   State
	Full    bool    // with State Paused: the sandbox is paused until the host has room for its disk
	Secret  bool    // with any State: the sandbox's memory must not be saved, see sandbox.Manager.KeepSecret
	Exit    vm.Exit // if State is Exited
	Console string  // last lines of the sandbox's console
}

func (e *Error) Error() string {
	if e.Secret {
		return fmt.Sprintf("%s sandbox %q: a step of a build has given it a secret, so its memory is not saved; "+
			"the build ends it with the step", e.Op, e.ID)
	}
	msg := fmt.Sprintf("%s sandbox %q: it is %s", e.Op, e.ID, e.State)
	switch {
	case e.State == Exited:
		msg += " (" + vmpool.DescribeExit(e.Exit) + ")" + excerpt.Ending(e.Console)
	case e.Full:
		msg += " until there is room for its disk on the host"
	case e.State == Paused, e.State == Suspended:
		msg += fmt.Sprintf(" ('forkd resume %s' lets it run again)", e.ID)
	}
	return msg
}

// NotFoundError reports that there is no sandbox with the given id, or that the client may not see
// the sandbox.
type NotFoundError struct{ ID string }

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("sandbox %.100q: not found ('forkd ls' lists what there is)", e.ID)
}

// Cutter is an operation that ends all requests to a sandbox's guest.
type Cutter string

// The operations.
const (
	ByDelete   Cutter = "deleted"
	BySuspend  Cutter = "suspended"
	ByRollback Cutter = "rolled back"
)

// CutOffError reports a request that was being handled when its sandbox was deleted, suspended or
// rolled back. What the request had already done in the guest is lost or, after a suspension, is
// part of the suspended state.
type CutOffError struct {
	ID, Op string
	By     Cutter
}

func (e *CutOffError) Error() string {
	return fmt.Sprintf("%s sandbox %q: cut off: the sandbox was %s meanwhile", e.Op, e.ID, e.By)
}
