// Package tenancy gives each principal a view of its part of a host: the sandboxes, snapshots,
// workspaces, volumes and events that the principal may see. For any other object, the principal
// receives the same answers as if the object did not exist.
//
// A principal is the client that makes a request. A principal with a prefix sees only objects with
// names, tags or labels of that prefix, see owner.Prefix.
//
// A View has the methods of a sandbox.Manager, a workspace.Set and a volume.Store, and decides only
// what is visible. The callers, which are the daemon's APIs, decide which operations a principal
// may use.
package tenancy

import (
	"context"

	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/recent"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/volume"
	"github.com/forkd/forkd/internal/host/workspace"
)

// Host makes Views of a host.
type Host struct {
	manager    *sandbox.Manager
	workspaces *workspace.Set
	volumes    *volume.Store
	verifies   *gate.Gate
	stats      *recent.Values[statsKey, sandbox.Stats]
	written    *recent.Values[statsKey, sandbox.Stats] // without the memory of VMM processes
}

// maxVerifies is the maximum number of concurrent verifications of snapshots. Each verification
// reads gigabytes from the disk and uses a whole CPU.
const maxVerifies = 3

// New returns a Host. It kills the children that an earlier daemon forked in DiskOf.
func New(m *sandbox.Manager, w *workspace.Set, v *volume.Store) *Host {
	endChildren(m)
	return &Host{m, w, v, gate.New(maxVerifies), recent.New[statsKey, sandbox.Stats](MaxStatsAge),
		recent.New[statsKey, sandbox.Stats](MaxStatsAge)}
}

// For returns the View of a principal. If the principal has no name, the View is empty.
func (h *Host) For(p owner.Owner) *View { return &View{host: h, p: p} }

// Permitted returns a View that contains only one sandbox. It is for a client that has no name, but
// has a permission for this sandbox, such as a signed URL. The caller must check the permission.
func (h *Host) Permitted(id string) *View { return &View{host: h, only: id} }

// IDs returns the ids of all sandboxes in any order. It is for a caller that must find out for
// which sandbox a permission was given.
func (h *Host) IDs() []string { return h.manager.IDs() }

// PoolSize returns how many VMM processes wait for a fork.
func (h *Host) PoolSize() int { return h.manager.PoolSize() }

// PoolWanted returns how many VMM processes should wait for a fork.
func (h *Host) PoolWanted() int { return h.manager.PoolWanted() }

// View is the part of a host that one principal may see. Its methods may be called concurrently. A
// method that has the name of a method of the Manager or the Set does the same as that method, but
// returns a "not found" error for everything outside the View.
type View struct {
	host *Host
	p    owner.Owner
	only string // id of the only visible sandbox; empty: all sandboxes that p may see are visible
}

// Key identifies what a View contains: two Views with the same Key contain the same objects.
type Key struct {
	p    owner.Owner
	only string
}

// Key returns the Key of the View.
func (v *View) Key() Key { return Key{v.p, v.only} }

// as returns a context in which the manager acts for the principal.
func (v *View) as(ctx context.Context) context.Context {
	if v.only != "" {
		return ctx
	}
	return owner.In(ctx, v.p)
}

// isEmpty reports whether the View contains at most the sandbox v.only.
func (v *View) isEmpty() bool { return v.p.Name == "" }

// Limited returns an *owner.PrefixError if the principal has a prefix. It is for operations that
// concern all sandboxes.
func (v *View) Limited(what string) error {
	return owner.Within(v.as(context.Background()), false, "%s", what)
}

// MayName returns an *owner.PrefixError if the principal may not use a name for a snapshot,
// workspace or volume. The error names the given kind of object.
func (v *View) MayName(what, name string) error {
	return owner.Within(v.as(context.Background()), v.p.Prefix.HasTag(name), "%s: %.70q", what, name)
}

// LeftAlone calls Manager.LeftAlone. The labels of these sandboxes are unknown, so a principal with
// a prefix sees none of them.
func (v *View) LeftAlone() []sandbox.LeftAlone {
	if v.isEmpty() || v.p.Prefix != "" {
		return nil
	}
	return v.host.manager.LeftAlone()
}

// OwnerOf returns the name of a sandbox's owner, which is the name of a client. Principals with a
// prefix, and principals of a single sandbox, may not learn names of clients, so their result is
// empty.
func (v *View) OwnerOf(i sandbox.Info) string {
	if v.isEmpty() || v.p.Prefix != "" {
		return ""
	}
	return i.Owner
}

// hasTag returns a *store.NotFoundError if the principal may not see a snapshot.
func (v *View) hasTag(tag string) error {
	if v.isEmpty() {
		return &store.NotFoundError{Tag: tag}
	}
	return v.host.manager.MayUse(v.as(context.Background()), tag)
}
