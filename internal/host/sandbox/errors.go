package sandbox

import (
	"errors"
	"fmt"

	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/excerpt"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
)

type NotFoundError struct{ ID string }

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("sandbox %.100q: not found ('forkd ls' lists what there is)", e.ID)
}

// StateError reports an operation that is not possible in the present state of a sandbox.
type StateError struct {
	ID, Op  string
	State   State
	Full    bool    // with State Paused: the sandbox is paused until the host has room for its disk
	Secret  bool    // with any State: the sandbox's memory must not be saved, see KeepSecret
	Exit    vm.Exit // if State is Exited
	Console string  // last lines of the sandbox's console
}

func (e *StateError) Error() string {
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

// cutter is an operation that ends all requests to a sandbox's guest.
type cutter string

const (
	byDelete   cutter = "deleted"
	bySuspend  cutter = "suspended"
	byRollback cutter = "rolled back"
)

// CutOffError reports a request that was being handled when its sandbox was deleted, suspended or
// rolled back. What the request had already done in the guest is lost or, after a suspension, part
// of the suspended state.
type CutOffError struct {
	ID, Op string
	By     cutter
}

func (e *CutOffError) Error() string {
	return fmt.Sprintf("%s sandbox %q: cut off: the sandbox was %s meanwhile", e.Op, e.ID, e.By)
}

// LeaseError reports an operation that failed because the sandbox's snapshot cannot be used. The
// sandbox continues to run.
type LeaseError struct {
	ID, Op, Tag string
	Err         error
}

func (e *LeaseError) Error() string {
	return fmt.Sprintf("%s sandbox %q: it runs, but its snapshot %q cannot be used: %v", e.Op, e.ID, e.Tag, e.Err)
}

func (e *LeaseError) Unwrap() error { return e.Err }

// HeldError reports that a sandbox cannot be killed, or get an expiry, because it belongs to a
// workspace.
type HeldError struct{ Op, ID, Workspace string }

func (e *HeldError) Error() string {
	return fmt.Sprintf("%s sandbox %q: it belongs to workspace %q, and so does what it has saved; "+
		"delete the workspace instead (forkd workspace delete %s)", e.Op, e.ID, e.Workspace, e.Workspace)
}

// ForkError reports a fork whose children did not all start.
type ForkError struct {
	Tag         string
	Asked       int
	Failed      int
	Unconfirmed int   // number of children, also counted in Failed, whose agent did not confirm its new identity
	First       error // error of the first child that failed
}

func (e *ForkError) Error() string {
	return fmt.Sprintf("fork %d of snapshot %q: %d failed, none is kept: %v", e.Asked, e.Tag, e.Failed, e.First)
}

func (e *ForkError) Unwrap() error { return e.First }

// unconfirmedError reports a child whose agent did not confirm its new identity. Such a child may
// have the same random numbers as its siblings, so no client may use it.
type unconfirmedError struct {
	id      string
	err     error
	console string
}

func (e *unconfirmedError) Error() string {
	return fmt.Sprintf("child %s: its agent did not confirm its new identity: %v", e.id, e.err) +
		excerpt.Ending(e.console)
}

func (e *unconfirmedError) Unwrap() error { return e.err }

// IsBusy reports whether err refuses a branch only for the moment: either too many branches are
// being made, or earlier branches are still being flushed to disk.
func IsBusy(err error) bool {
	var backlog *store.BacklogError
	return errors.As(err, new(*admit.BusyError)) || errors.As(err, &backlog) && backlog.Flush == nil
}

// FamilyError reports that a sandbox cannot continue from the state of a snapshot or of another
// sandbox, because that state descends from another booted VM.
type FamilyError struct{ ID, From string }

func (e *FamilyError) Error() string {
	return fmt.Sprintf("sandbox %q cannot go on as %q: they are of different families, since they do not come from the "+
		"same parent ('forkd tree' shows families)", e.ID, e.From)
}

// RollbackError reports a rollback that failed after the sandbox's previous state was lost. The
// sandbox has been killed.
type RollbackError struct {
	ID, Tag string
	Err     error
	Kept    bool // the sandbox's latest suspended state still exists
	Console string
}

func (e *RollbackError) Error() string {
	msg := fmt.Sprintf("roll back sandbox %q to %q: %v; the sandbox was killed", e.ID, e.Tag, e.Err)
	if e.Kept {
		msg += fmt.Sprintf(" ('forkd resume %s' brings it back as it was when it was last suspended)", e.ID)
	}
	return msg + excerpt.Ending(e.Console)
}

func (e *RollbackError) Unwrap() error { return e.Err }
