package tenancy

import (
	"context"

	"github.com/opencontainers/go-digest"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/sigstore"
)

// Pack calls Hub.Pack for a snapshot that the principal may see. A package has whole layers,
// including the layers of ancestors. So the principal must not have a prefix.
func (v *View) Pack(ctx context.Context, h *hub.Hub, tag string) (*hub.Package, error) {
	if err := v.mayPack(tag); err != nil {
		return nil, err
	}
	return h.Pack(v.as(ctx), v.p.Name, tag)
}

// Push calls Hub.Push for a principal that may pack the snapshot.
func (v *View) Push(ctx context.Context, h *hub.Hub, tag string, to hub.Remote, recordHot bool, on func(hub.Progress)) (
	hub.Sent, error,
) {
	if err := v.mayPack(tag); err != nil {
		return hub.Sent{}, err
	}
	return h.Push(v.as(ctx), v.p.Name, tag, to, recordHot, on)
}

// mayPack returns an error if the principal may not take a snapshot to another host.
func (v *View) mayPack(tag string) error {
	if err := v.hasTag(tag); err != nil {
		return err
	}
	return v.Limited("an archive of a snapshot")
}

// Serve calls the function serve, which sends a snapshot to another daemon. The argument of serve
// is the name of the principal. A snapshot is sent with whole layers, including the layers of
// ancestors. So a principal with a prefix gets only its own snapshots, and only those without
// layers of other snapshots.
func (v *View) Serve(tag string, serve func(name string) error) error {
	if snapshot.CheckTag(tag) != nil {
		return &store.NotFoundError{Tag: tag}
	}
	if err := v.hasTag(tag); err != nil {
		return err
	}
	_, alone, err := v.host.manager.Snapshots().Version(tag)
	if err != nil {
		return err
	}
	if err := owner.Within(v.as(context.Background()), alone && v.p.Prefix.HasTag(tag),
		"pull of %q, which has layers of other snapshots or is not the token's own: pull a compacted copy", tag); err != nil {
		return err
	}
	return serve(v.p.Name)
}

// MayUnpack returns an error if the principal may not unpack or pull a snapshot that gets the given
// tag. All clients may fork such a snapshot, and it can share files with any snapshot. So the
// principal must not have a prefix. An empty tag is allowed.
func (v *View) MayUnpack(h *hub.Hub, tag string) error {
	if v.isEmpty() {
		return &store.NotFoundError{Tag: tag}
	}
	if err := v.Limited("a snapshot from another host"); err != nil {
		return err
	}
	if tag == "" {
		return nil
	}
	return h.CheckTag(tag)
}

// Unpack calls Hub.Unpack if MayUnpack allows it.
func (v *View) Unpack(ctx context.Context, h *hub.Hub, tag string, a *hub.Arrival, on func(hub.Progress)) (
	store.Info, error,
) {
	if err := v.MayUnpack(h, tag); err != nil {
		return store.Info{}, err
	}
	return h.Unpack(v.as(ctx), v.p.Name, tag, a, on)
}

// Find calls Hub.Find if MayUnpack allows a snapshot from outside.
func (v *View) Find(ctx context.Context, h *hub.Hub, r hub.Remote) (*hub.Offer, error) {
	if err := v.MayUnpack(h, ""); err != nil {
		return nil, err
	}
	return h.Find(v.as(ctx), v.p.Name, r)
}

// Pull calls Hub.Pull if MayUnpack allows it.
func (v *View) Pull(ctx context.Context, h *hub.Hub, tag string, r hub.Remote, on func(hub.Progress)) (
	hub.Pulled, error,
) {
	if err := v.MayUnpack(h, r.NewTag(tag)); err != nil {
		return hub.Pulled{}, err
	}
	return h.Pull(v.as(ctx), v.p.Name, tag, r, on)
}

// PullLazily calls Hub.PullLazily if MayUnpack allows it.
func (v *View) PullLazily(ctx context.Context, h *hub.Hub, tag string, r hub.Remote, on func(hub.Progress)) (
	hub.Pulled, error,
) {
	if err := v.MayUnpack(h, r.NewTag(tag)); err != nil {
		return hub.Pulled{}, err
	}
	return h.PullLazily(v.as(ctx), v.p.Name, tag, r, on)
}

// Copy calls Hub.Copy if MayUnpack allows a snapshot from outside.
func (v *View) Copy(ctx context.Context, h *hub.Hub, from, to hub.Remote, on func(hub.Progress)) (hub.Copied, error) {
	if err := v.MayUnpack(h, ""); err != nil {
		return hub.Copied{}, err
	}
	return h.Copy(v.as(ctx), v.p.Name, from, to, on)
}

// Sign calls Hub.Sign if MayUnpack allows a snapshot from outside.
func (v *View) Sign(ctx context.Context, h *hub.Hub, r hub.Remote, bundle []byte) (digest.Digest, error) {
	if err := v.MayUnpack(h, ""); err != nil {
		return "", err
	}
	return h.Sign(v.as(ctx), v.p.Name, r, bundle)
}

// Verify calls Hub.Verify if MayUnpack allows a snapshot from outside.
func (v *View) Verify(ctx context.Context, h *hub.Hub, r hub.Remote, keys []sigstore.TrustedKey) (
	digest.Digest, sigstore.TrustedKey, error,
) {
	if err := v.MayUnpack(h, ""); err != nil {
		return "", sigstore.TrustedKey{}, err
	}
	return h.Verify(v.as(ctx), v.p.Name, r, keys)
}
