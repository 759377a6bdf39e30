package tenancy

import (
	"context"
	"slices"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
)

// HasSnapshot returns a *store.NotFoundError for a snapshot that is not known. There may be none of that
// tag.
func (v *View) HasSnapshot(tag string) error { return v.hasTag(tag) }

// Snapshots describes all snapshots.
func (v *View) Snapshots() []store.Info {
	if v.isEmpty() {
		return nil
	}
	return v.host.manager.SnapshotsFor(v.as(context.Background()))
}

// Snapshot describes a snapshot, without what it says of sandboxes and snapshots of others.
func (v *View) Snapshot(tag string) (d store.Detail, err error) {
	if err := v.hasTag(tag); err != nil {
		return d, err
	}
	if d, err = v.host.manager.Snapshots().Detail(tag); err != nil {
		return d, err
	}
	if !v.p.Prefix.HasTag(d.Tag) {
		d.Leases = 0
		d.Dependents = slices.DeleteFunc(d.Dependents, func(tag string) bool { return v.hasTag(tag) != nil })
	}
	return d, nil
}

// TagOf returns the tag of a snapshot that is still there and known, or "".
func (v *View) TagOf(s *snapshot.Ref) string {
	if s == nil || !v.host.manager.Snapshots().Has(s.Tag, s.ID) || v.hasTag(s.Tag) != nil {
		return ""
	}
	return s.Tag
}

// BaseImage is Store.BaseImage.
func (v *View) BaseImage(base snapshot.Base) string {
	return v.host.manager.Snapshots().BaseImage(base)
}

// UnnamedBytes returns what a deleted snapshot, onto which a sandbox was rebased, still takes.
func (v *View) UnnamedBytes(i sandbox.Info) uint64 {
	if i.RebasedOnto == "" {
		return 0
	}
	return v.host.manager.Snapshots().UnnamedBytes(i.RebasedOnto)
}

// Machines returns a function that tells of the machine of a sandbox how many vCPUs it has, and how many
// bytes its root disk: those of the snapshot that it was forked from or, if that has gone, of its state;
// 0 if neither is there.
func (v *View) Machines() func(sandbox.Info) (vcpus uint32, diskBytes uint64) {
	of := make(map[string]store.Info)
	for _, i := range v.host.manager.Snapshots().List() {
		of[i.Tag] = i
	}
	return func(s sandbox.Info) (uint32, uint64) {
		i, ok := of[s.SnapshotTag]
		if !ok {
			i = of[s.StateTag]
		}
		return i.Machine.VCPUs, i.Base.Bytes
	}
}

// DeleteSnapshot is Manager.DeleteSnapshot.
func (v *View) DeleteSnapshot(tag string, mode store.DeleteMode) error {
	if err := v.hasTag(tag); err != nil {
		return err
	}
	return v.host.manager.DeleteSnapshot(tag, mode)
}

// VerifySnapshot is Manager.VerifySnapshot.
func (v *View) VerifySnapshot(ctx context.Context, tag string) error {
	if err := v.hasTag(tag); err != nil {
		return err
	}
	return v.host.manager.VerifySnapshot(v.as(ctx), tag)
}

// Compact makes of a snapshot one that needs no other.
func (v *View) Compact(ctx context.Context, from, to string) (store.Info, error) {
	if err := v.hasTag(from); err != nil {
		return store.Info{}, err
	}
	return chain.Compact(v.as(ctx), v.host.manager.Snapshots(), from, to, nil)
}
