// Package failure defines the types of errors that carry data, for operations on sandboxes and
// snapshots. Packages sandbox and store return them, and package face chooses the answer to the
// client.
package failure

import (
	"fmt"

	"github.com/forkd/forkd/internal/host/excerpt"
)

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

// HeldError reports that a sandbox cannot be killed, or given an expiry, because it belongs to a
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
	Unconfirmed int   // number of children whose agent did not confirm its new identity; Failed includes them
	First       error // error of the first child that failed
}

func (e *ForkError) Error() string {
	return fmt.Sprintf("fork %d of snapshot %q: %d failed, none is kept: %v", e.Asked, e.Tag, e.Failed, e.First)
}

func (e *ForkError) Unwrap() error { return e.First }

// UnconfirmedError reports a child whose agent did not confirm its new identity. Such a child may
// have the same random numbers as its siblings, so no client may use it.
type UnconfirmedError struct {
	ID      string
	Err     error
	Console string
}

func (e *UnconfirmedError) Error() string {
	return fmt.Sprintf("child %s: its agent did not confirm its new identity: %v", e.ID, e.Err) +
		excerpt.Ending(e.Console)
}

func (e *UnconfirmedError) Unwrap() error { return e.Err }

// FamilyError reports that a sandbox cannot continue from the state of a snapshot or of another
// sandbox, because that state comes from a different parent, which was booted separately.
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

// VolumesError reports that a snapshot includes volumes, which the operation cannot handle.
type VolumesError struct{ Op, Tag string }

func (e *VolumesError) Error() string {
	return fmt.Sprintf("%s snapshot %q: it includes volumes, which an archive or a hub cannot hold yet: fork it, and copy "+
		"the files of the volumes out (forkd cp)", e.Op, e.Tag)
}

// AwayError reports a sandbox that is moving to another host, or has moved there.
type AwayError struct{ ID, Node string } // Node is the host that has the sandbox; empty: it is still moving

func (e *AwayError) Error() string {
	if e.Node == "" {
		return fmt.Sprintf("sandbox %q: it is moving to another host; try again when it has arrived, or continue or cancel the "+
			"move (forkd move %s)", e.ID, e.ID)
	}
	return fmt.Sprintf("sandbox %q: it has moved to the host %q: send the request to its daemon, or to a router", e.ID,
		e.Node)
}
