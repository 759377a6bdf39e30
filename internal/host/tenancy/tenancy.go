// Package tenancy shows each principal its part of a host: the sandboxes, snapshots, workspaces and
// events that it may see. For the principal, others do not exist.
//
// A View offers the methods of a sandbox.Manager and a workspace.Set, and decides nothing else
// about sandboxes. The daemon's faces decide which operations a principal's scope permits.
package tenancy

import (
	"context"

	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/workspace"
)

// Host makes Views of a host.
type Host struct {
	manager    *sandbox.Manager
	workspaces *workspace.Set
	verifies   *gate.Gate
}

// maxVerifies bounds concurrent verifications of snapshots. Each reads gigabytes from the disk and
// keeps a CPU busy with hashing.
const maxVerifies = 3

// New returns a Host.
func New(m *sandbox.Manager, w *workspace.Set) *Host { return &Host{m, w, gate.New(maxVerifies)} }

// For returns the View of a principal. It is empty for a principal without a name.
func (h *Host) For(p owner.Owner) *View { return &View{host: h, p: p} }

// Permitted returns a View of one sandbox, for a client that has a permission for it and no name,
// such as one with a signed URL. The caller checks the permission.
func (h *Host) Permitted(id string) *View { return &View{host: h, only: id} }

// IDs returns the ids of all sandboxes in any order, for a caller that must find the sandbox of a
// permission.
func (h *Host) IDs() []string { return h.manager.IDs() }

// PoolSize returns how many VMM processes wait for a fork.
func (h *Host) PoolSize() int { return h.manager.PoolSize() }

// PoolWanted returns how many VMM processes should wait for a fork.
func (h *Host) PoolWanted() int { return h.manager.PoolWanted() }

// View is the part of a host that one principal may see. Its methods may be called concurrently.
// Methods that a Manager or a Set also has do the same, but return a "not found" error for
// everything outside the View.
type View struct {
	host *Host
	p    owner.Owner
	only string // the only visible sandbox; empty: those that p may see
}

// as returns a context in which the manager acts for the principal.
func (v *View) as(ctx context.Context) context.Context {
	if v.only != "" {
		return ctx
	}
	return owner.In(ctx, v.p)
}

// isEmpty reports whether at most one sandbox is visible.
func (v *View) isEmpty() bool { return v.p.Name == "" }

// Limited returns a *owner.PrefixError if the principal has a prefix, for operations that concern
// all sandboxes.
func (v *View) Limited(what string) error {
	return owner.Within(v.as(context.Background()), false, "%s", what)
}

// MayName returns a *owner.PrefixError if the principal may not give a snapshot or workspace this
// name. what names the kind of object in the error.
func (v *View) MayName(what, name string) error {
	return owner.Within(v.as(context.Background()), v.p.Prefix.HasTag(name), "%s: %.70q", what, name)
}

// LeftAlone returns the sandboxes that no daemon can use. Their labels are unknown, so a principal
// with a prefix sees none.
func (v *View) LeftAlone() []sandbox.LeftAlone {
	if v.isEmpty() || v.p.Prefix != "" {
		return nil
	}
	return v.host.manager.LeftAlone()
}

// hasTag returns a *store.NotFoundError for a snapshot that the principal may not see.
func (v *View) hasTag(tag string) error {
	if v.isEmpty() {
		return &store.NotFoundError{Tag: tag}
	}
	return v.host.manager.MayUse(v.as(context.Background()), tag)
}
