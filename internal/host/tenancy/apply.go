package tenancy

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/diff"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// ApplyRequest asks to apply to a sandbox the changes of another side: a snapshot or another
// sandbox.
type ApplyRequest struct {
	ID     string // the sandbox that receives the changes
	From   string // tag of a snapshot or id of a sandbox
	Base   string // tag of the snapshot from which both sides come; empty: their nearest common ancestor
	DryRun bool   // only list the changes

	diff.Request // callers do not set the fields for leases
}

// ApplyResult is the answer to an ApplyRequest.
type ApplyResult struct {
	diff.Result
	Base    string // tag of the base
	Applied bool   // the sandbox has the changes
}

// NoBaseError means that two sides have no common ancestor that still exists, or that their common
// ancestor is not known.
type NoBaseError struct{ Reason string }

func (e *NoBaseError) Error() string { return e.Reason }

// ChangedError means that the receiving sandbox has written files during the request. Nothing was applied.
type ChangedError struct{ Reason string }

func (e *ChangedError) Error() string { return e.Reason }

// IncompleteError means that the guest could neither complete nor undo the changes.
type IncompleteError struct{ Reason string }

func (e *IncompleteError) Error() string { return e.Reason }

// Apply applies to a running sandbox the changes that another side has made since the common base
// of both. It applies all changes or none. If there is a conflict that no rule resolves, it applies
// none, and the result has the conflicts.
//
// The guest makes the changes when it has received all of them. So if the daemon is killed, either
// all changes take place, or none. Like Diff, Apply deletes all snapshots and children that it has
// made.
func (v *View) Apply(ctx context.Context, d *diff.Differ, req ApplyRequest) (r ApplyResult, err error) {
	if err := v.mayApply(&req); err != nil {
		return r, err
	}
	ctx = v.as(ctx)
	isUp := func(context.Context, agentclient.DialFunc) error { return nil }
	if err := v.LookAt(ctx, req.ID, applyOp, isUp); err != nil { // resumes a suspended sandbox, but not a paused one
		return r, err
	}
	ctx, end, err := d.Begin(ctx)
	if err != nil {
		return r, err
	}
	var undo cleanup.Stack
	defer undo.Run()
	undo.Add(end)
	onto, err := v.side(ctx, &undo, req.ID)
	if err != nil {
		return r, err
	}
	from, err := v.side(ctx, &undo, req.From)
	if err != nil {
		return r, err
	}
	base, err := v.base(ctx, &undo, &req, from.disk, onto.disk)
	if err != nil {
		return r, err
	}
	r.Base = req.Base
	req.Request.Base, req.Old, req.New = base.disk, onto.disk, from.disk
	if req.DryRun {
		r.Result, err = d.Merge(ctx, req.Request, nil)
		return r, err
	}
	var sent *transfer
	r.Result, err = d.Merge(ctx, req.Request, func() io.Writer {
		sent = newTransfer(func(archive io.Reader) error {
			return v.Use(ctx, req.ID, applyOp, func(ctx context.Context, dial agentclient.DialFunc) error {
				return applied(agentclient.New(dial).Apply(ctx, archive))
			})
		})
		return sent
	})
	if sent != nil {
		err = sent.end(err)
		r.Applied = err == nil
	}
	return r, err
}

// applyOp precedes the id of the sandbox in errors.
const applyOp = "apply changes to"

// mayApply returns an error if the principal may not see a side of the request. It runs before the first snapshot is
// made.
func (v *View) mayApply(req *ApplyRequest) error {
	if err := v.Reach(req.ID); err != nil {
		return err
	}
	if req.From == req.ID {
		return invalid.Errorf("from", "%q: the same as the sandbox that receives the changes", req.From)
	}
	if err := v.hasSide(req.From); err != nil || req.Base == "" {
		return err
	}
	return v.hasSide(req.Base)
}

// applied returns the error in an agent's answer.
func applied(answer agentproto.Applied, err error) error {
	switch {
	case err != nil:
		return err
	case answer.Incomplete:
		return &IncompleteError{answer.Error}
	case len(answer.Changed) > 0:
		return &ChangedError{answer.Error}
	case answer.Error != "":
		return &agentclient.Error{Op: "apply changes", Code: agentclient.CodeInternal, Message: answer.Error}
	}
	return nil
}

// transfer passes an archive to a guest.
type transfer struct {
	*io.PipeWriter
	done chan error
}

// newTransfer calls send with an archive, which is the data that is written to the transfer.
func newTransfer(send func(archive io.Reader) error) *transfer {
	r, w := io.Pipe()
	t := &transfer{w, make(chan error, 1)}
	go func() {
		err := send(r)
		r.CloseWithError(errors.Join(errors.New("the guest has ended the transfer"), err))
		t.done <- err
	}()
	return t
}

// end ends the archive, and returns the error of the transfer. The parameter err is the error of
// the program that writes the archive. If err is not nil, the guest receives an incomplete archive,
// and applies nothing.
func (t *transfer) end(err error) error {
	t.CloseWithError(err) // if err is nil, the reader gets io.EOF
	sent := <-t.done
	if sent != nil {
		return sent
	}
	return err
}

// base prepares the base of an apply. If the request names no base, it sets req.Base to the base's
// tag, provided that the client may see that tag. A client may use the ancestor of its own
// sandboxes even if it cannot see the ancestor.
func (v *View) base(ctx context.Context, undo *cleanup.Stack, req *ApplyRequest, from, onto *store.Lease) (s side,
	err error) {
	if req.Base != "" {
		return v.side(ctx, undo, req.Base)
	}
	id, err := v.ancestor(req, from, onto)
	if err != nil {
		return s, err
	}
	snapshots := v.host.manager.Snapshots()
	tag := snapshots.TagOf(id)
	gone := &NoBaseError{fmt.Sprintf("the snapshot that %s and %s come from was deleted: name another base", req.From,
		req.ID)}
	if tag == "" {
		return s, gone
	}
	unpin, err := snapshots.Pin(tag)
	if err != nil {
		return s, gone
	}
	undo.Add(unpin)
	if snapshots.TagOf(id) != tag { // the snapshot may have been replaced before the pin
		return s, gone
	}
	o := owner.Of(ctx)
	o.Prefix = ""
	if s, err = v.side(owner.In(ctx, o), undo, tag); err != nil && ctx.Err() == nil && v.hasTag(tag) != nil {
		return s, gone // the text of the error is about another client's snapshot
	}
	if err == nil && v.hasTag(tag) == nil {
		req.Base = tag
	}
	return s, err
}

// ancestor returns the ID of the nearest common ancestor of two sides: the snapshot that wrote the topmost disk
// layer that both share.
//
// After many branches, a sandbox merges the layers that it has written since its fork. If the other
// side comes from one of these branches, the topmost shared layer is older than the nearest common
// ancestor. With an older base, a change of one side could look like a change of the other side. So
// ancestor returns an error if, above the shared layers, both sides have layers that the same sandbox
// has written.
func (v *View) ancestor(req *ApplyRequest, from, onto *store.Lease) (string, error) {
	n := diff.Shared(from, onto)
	if n == 0 {
		return "", &NoBaseError{fmt.Sprintf("%s and %s have no snapshot in common: name sides of one family ('forkd tree'"+
			" shows them), or a base", req.From, req.ID)}
	}
	layers := onto.Manifest().Disk.Layers[:n]
	shared := make(map[string]bool, n)
	for _, l := range layers {
		shared[l.Owner] = true
	}
	unknown := &NoBaseError{fmt.Sprintf("the nearest common ancestor of %s and %s cannot be determined: name it as the"+
		" base", req.From, req.ID)}
	mine, ok := v.writers(req.From, shared)
	if !ok {
		return "", unknown
	}
	theirs, ok := v.writers(req.ID, shared)
	if !ok {
		return "", unknown
	}
	for id := range mine {
		if theirs[id] {
			return "", unknown
		}
	}
	return layers[n-1].Owner, nil
}

// writers returns the ids of the sandboxes that have written a side's layers above the shared
// layers. The result ok is false if a snapshot of the side's line no longer exists.
func (v *View) writers(name string, shared map[string]bool) (ids map[string]bool, ok bool) {
	ids = make(map[string]bool)
	snapshots, id := v.host.manager.Snapshots(), ""
	if vmpool.IsID(name) {
		i, err := v.Sandbox(name)
		if err != nil {
			return nil, false
		}
		ids[name], id = true, i.StateID
	} else {
		d, err := snapshots.Detail(name)
		if err != nil {
			return nil, false
		}
		id = d.ID
	}
	line, whole := snapshots.Above(id)
	for _, m := range line {
		if shared[m.ID] {
			return ids, true
		}
		addWriter(ids, m)
	}
	return ids, whole
}

func addWriter(ids map[string]bool, m *snapshot.Manifest) {
	if m.Branch != nil {
		ids[m.Branch.SandboxID] = true
	}
}
