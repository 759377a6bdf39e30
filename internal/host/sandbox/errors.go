package sandbox

import (
	"errors"
	"fmt"

	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
)

// NotFoundError reports that no sandbox has the given id.
type NotFoundError struct{ ID string }

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("sandbox %.100q: not found ('forkd ls' lists what there is)", e.ID)
}

// StateError reports an operation that the state of a sandbox does not allow.
type StateError struct {
	ID, Op  string
	State   State
	Full    bool    // if State is Paused: until the host has room for its disk
	Secret  bool    // whatever State is: its memory is not saved, see KeepSecret
	Exit    vm.Exit // if State is Exited
	Console string  // last lines of its console
}

func (e *StateError) Error() string {
	if e.Secret {
		return fmt.Sprintf("%s sandbox %q: a step of a build has given it a secret, so its memory is not saved; "+
			"the build ends it with the step", e.Op, e.ID)
	}
	msg := fmt.Sprintf("%s sandbox %q: it is %s", e.Op, e.ID, e.State)
	switch {
	case e.State == Exited:
		msg += describeExit(e.Exit, e.Console)
	case e.Full:
		msg += " until there is room for its disk on the host"
	case e.State == Paused, e.State == Suspended:
		msg += fmt.Sprintf(" ('forkd resume %s' lets it run again)", e.ID)
	}
	return msg
}

// cutter is the operation that cut requests off from their guest.
type cutter string

const (
	byDelete   cutter = "deleted"
	bySuspend  cutter = "suspended"
	byRollback cutter = "rolled back"
)

// CutOffError reports an operation that was running when its sandbox was deleted, suspended or
// rolled back. Its effects in the guest up to then are lost with the guest's state, or suspended
// with it.
type CutOffError struct {
	ID, Op string
	By     cutter
}

func (e *CutOffError) Error() string {
	return fmt.Sprintf("%s sandbox %q: cut off: the sandbox was %s meanwhile", e.Op, e.ID, e.By)
}

// LeaseError reports an operation that needs the sandbox's snapshot, which cannot be used. The
// sandbox itself runs.
type LeaseError struct {
	ID, Op, Tag string
	Err         error
}

func (e *LeaseError) Error() string {
	return fmt.Sprintf("%s sandbox %q: it runs, but its snapshot %q cannot be used: %v", e.Op, e.ID, e.Tag, e.Err)
}

func (e *LeaseError) Unwrap() error { return e.Err }

// replacedError says that a tag now names a different snapshot than the required one.
type replacedError struct{ tag string }

func (e *replacedError) Error() string {
	return fmt.Sprintf("snapshot %q was replaced by another", e.tag)
}

// HeldError reports a sandbox that cannot be killed, now or later, because a workspace stands for it.
type HeldError struct{ Op, ID, Workspace string }

func (e *HeldError) Error() string {
	return fmt.Sprintf("%s sandbox %q: it belongs to workspace %q, and so does what it has saved; "+
		"delete the workspace instead (forkd workspace delete %s)", e.Op, e.ID, e.Workspace, e.Workspace)
}

// ForkError reports children that did not start.
type ForkError struct {
	Tag         string
	Asked       int
	Failed      int
	Unconfirmed int   // of Failed: children whose agent did not confirm its new identity
	First       error // error of the first of them
}

func (e *ForkError) Error() string {
	return fmt.Sprintf("fork %d of snapshot %q: %d failed, none is kept: %v", e.Asked, e.Tag, e.Failed, e.First)
}

func (e *ForkError) Unwrap() error { return e.First }

// unconfirmedError reports a child whose agent did not take up its new identity. Such a child may
// share random numbers with its siblings, so it is never handed out.
type unconfirmedError struct {
	id      string
	err     error
	console string
}

func (e *unconfirmedError) Error() string {
	msg := fmt.Sprintf("child %s: its agent did not confirm its new identity: %v", e.id, e.err)
	if e.console != "" {
		msg += "; its console ends with:\n" + e.console
	}
	return msg
}

func (e *unconfirmedError) Unwrap() error { return e.err }

func isUnconfirmed(err error) bool {
	var u *unconfirmedError
	return errors.As(err, &u)
}

// BusyError reports that the host, or one owner, has reached the limit of concurrent operations of
// a kind.
type BusyError struct {
	What  string
	Limit int
	Owner string // the owner at its limit; empty: the host is
}

func (e *BusyError) Error() string {
	if e.Owner != "" {
		return fmt.Sprintf("%d %s of %s are running, the most for one client at once; try again", e.Limit, e.What, e.Owner)
	}
	return fmt.Sprintf("%d %s are running, the most at once; try again", e.Limit, e.What)
}

// IsBusy reports whether a refused branch may soon succeed: the host is at its limit of concurrent
// branches, or its disk has not caught up with them.
func IsBusy(err error) bool {
	var busy *BusyError
	var backlog *store.BacklogError
	return errors.As(err, &busy) || errors.As(err, &backlog) && backlog.Flush == nil
}

// FamilyError reports a snapshot that does not come from the same booted VM as a sandbox, so the
// sandbox cannot be rolled back to it.
type FamilyError struct{ ID, Tag string }

func (e *FamilyError) Error() string {
	return fmt.Sprintf("roll back sandbox %q to %q: the snapshot is of another family: it does not come from the "+
		"parent that the sandbox comes from ('forkd tree' shows families)", e.ID, e.Tag)
}

// RollbackError reports a rollback that failed after its point of no return. The sandbox has been
// killed.
type RollbackError struct {
	ID, Tag string
	Err     error
	Kept    bool // its latest suspended state remains
	Console string
}

func (e *RollbackError) Error() string {
	msg := fmt.Sprintf("roll back sandbox %q to %q: %v; the sandbox was killed", e.ID, e.Tag, e.Err)
	if e.Kept {
		msg += fmt.Sprintf(" ('forkd resume %s' brings it back as it was when it was last suspended)", e.ID)
	}
	if e.Console != "" {
		msg += "; its console ends with:\n" + e.Console
	}
	return msg
}

func (e *RollbackError) Unwrap() error { return e.Err }

func describeExit(x vm.Exit, console string) string {
	msg := " (" + vmpool.DescribeExit(x) + ")"
	if console != "" {
		msg += "; its console ends with:\n" + console
	}
	return msg
}
