// Package tenancy shows each principal its part of a host: the sandboxes, snapshots, workspaces and
// events that it may know of. Whatever else there is is to it as if it were not there.
//
// A View does what a sandbox.Manager and a workspace.Set do, and decides nothing else about sandboxes.
// What a principal may do with what it knows, by its scope, is for the daemon's faces to say.
package tenancy

import (
	"context"

	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/workspace"
)

// Host makes Views of all that there is.
type Host struct {
	manager    *sandbox.Manager
	workspaces *workspace.Set
}

// New returns a Host.
func New(m *sandbox.Manager, w *workspace.Set) *Host { return &Host{m, w} }

// For returns the View of a principal. Without a name it is empty.
func (h *Host) For(p owner.Owner) *View { return &View{host: h, p: p} }

// Permitted returns the View of one sandbox, for a client that has a permission for it and no name, such
// as a signed URL. Whether the permission holds is for the caller to check.
func (h *Host) Permitted(id string) *View { return &View{host: h, only: id} }

// IDs returns the ids of all sandboxes, for a caller that has to find out which of them a permission is
// for.
func (h *Host) IDs() (ids []string) {
	for _, i := range h.manager.List() {
		ids = append(ids, i.ID)
	}
	return ids
}

// PoolSize returns how many VMM processes wait for a fork, and PoolWanted how many should.
func (h *Host) PoolSize() int { return h.manager.PoolSize() }

// PoolWanted returns how many VMM processes should wait for a fork.
func (h *Host) PoolWanted() int { return h.manager.PoolWanted() }

// View is what one principal may know of. Its methods may be called concurrently. Those that a Manager
// or a Set has too do the same, and return an error as if it were not there for anything else.
type View struct {
	host *Host
	p    owner.Owner
	only string // the one sandbox that is known; empty: those that p may know of
}

// as returns a context in which the manager acts for the principal.
func (v *View) as(ctx context.Context) context.Context {
	if v.only != "" {
		return ctx
	}
	return owner.In(ctx, v.p)
}

// isEmpty reports whether nothing but one sandbox is known.
func (v *View) isEmpty() bool { return v.p.Name == "" }

// Limited returns a *owner.PrefixError for what concerns all sandboxes, if the principal has a limit.
func (v *View) Limited(what string) error {
	return owner.Within(v.as(context.Background()), false, "%s", what)
}

// MayName returns a *owner.PrefixError for the name of a snapshot or workspace that the principal may
// not give, which an error calls what.
func (v *View) MayName(what, name string) error {
	return owner.Within(v.as(context.Background()), v.p.Prefix.HasTag(name), "%s: %.70q", what, name)
}

// LeftAlone returns what is left of sandboxes that no daemon can use. Whose labels those have is not
// known, so a principal with a limit learns of none.
func (v *View) LeftAlone() []sandbox.LeftAlone {
	if v.isEmpty() || v.p.Prefix != "" {
		return nil
	}
	return v.host.manager.LeftAlone()
}

// hasTag returns a *store.NotFoundError for a snapshot that is not known.
func (v *View) hasTag(tag string) error {
	if v.isEmpty() {
		return &store.NotFoundError{Tag: tag}
	}
	return v.host.manager.MayUse(v.as(context.Background()), tag)
}
