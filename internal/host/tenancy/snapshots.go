package tenancy

import (
	"context"
	"errors"
	"slices"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/atrest"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
)

// HasSnapshot returns a *store.NotFoundError if the principal may not see a snapshot. It does not
// check that the snapshot exists.
func (v *View) HasSnapshot(tag string) error { return v.hasTag(tag) }

// Snapshots returns the Info of all snapshots that the principal may see.
func (v *View) Snapshots() []store.Info {
	if v.isEmpty() {
		return nil
	}
	list := v.host.manager.Snapshots().List()
	if v.p.Prefix == "" {
		return list
	}
	list = slices.DeleteFunc(list, func(i store.Info) bool { return v.hasTag(i.Tag) != nil })
	for n := range list {
		v.narrow(&list[n])
	}
	return list
}

// narrow removes from i all references to sandboxes and snapshots that the principal may not see.
func (v *View) narrow(i *store.Info) {
	if !v.p.Prefix.HasTag(i.Tag) {
		i.Leases = 0
	}
	if v.hasTag(i.Parent) != nil {
		i.Parent = ""
	}
	if i.Branch != nil && v.hides(i.Branch.SandboxID) {
		branch := *i.Branch
		branch.SandboxID = ""
		i.Branch = &branch
	}
}

// hides reports whether a sandbox exists and the principal may not see it. The principal may
// nevertheless see a branch of such a sandbox: a client without a prefix can give the branch a tag
// with the principal's prefix.
func (v *View) hides(id string) bool {
	_, err := v.host.manager.Get(id)
	return err == nil && v.Reach(id) != nil
}

// SnapshotInfo returns the Info of a snapshot, as Snapshots does.
func (v *View) SnapshotInfo(tag string) (store.Info, error) {
	if err := v.hasTag(tag); err != nil {
		return store.Info{}, err
	}
	i, err := v.host.manager.Snapshots().Info(tag)
	if err == nil && v.p.Prefix != "" {
		v.narrow(&i)
	}
	return i, err
}

// Snapshot describes a snapshot, without references to sandboxes and snapshots that the principal
// may not see.
func (v *View) Snapshot(tag string) (d store.Detail, err error) {
	if err := v.hasTag(tag); err != nil {
		return d, err
	}
	if d, err = v.host.manager.Snapshots().Detail(tag); err != nil {
		return d, err
	}
	others := func(tag string) bool { return v.hasTag(tag) != nil }
	// The layer with the digest d.ParentDigest may belong to a sandbox that the principal may not
	// see, and not to the snapshot that lists show as the parent.
	if v.p.Prefix != "" && (d.Branch == nil || v.Reach(d.Branch.SandboxID) != nil) {
		d.ParentDigest = ""
	}
	v.narrow(&d.Info)
	d.Dependents, d.Ancestors = slices.DeleteFunc(d.Dependents, others), slices.DeleteFunc(d.Ancestors, others)
	d.Line = slices.DeleteFunc(d.Line, func(r snapshot.Ref) bool { return others(r.Tag) })
	return d, nil
}

// TagOf returns the tag of a snapshot. It returns "" if the snapshot no longer exists, or if the
// principal may not see it.
func (v *View) TagOf(s *snapshot.Ref) string {
	if s == nil || !v.host.manager.Snapshots().Has(s.Tag, s.ID) || v.hasTag(s.Tag) != nil {
		return ""
	}
	return s.Tag
}

// BaseImage calls Store.BaseImage.
func (v *View) BaseImage(base snapshot.Base) string {
	return v.host.manager.Snapshots().BaseImage(base)
}

// UnnamedBytes returns the space that a deleted snapshot still takes because the sandbox was
// rebased onto it.
func (v *View) UnnamedBytes(i sandbox.Info) uint64 {
	if i.RebasedOnto == "" {
		return 0
	}
	return v.host.manager.Snapshots().UnnamedBytes(i.RebasedOnto)
}

// Machine returns the number of vCPUs of a sandbox, and the size of its root disk in bytes. Both
// values come from the snapshot that the sandbox was forked from or, if that snapshot no longer
// exists, from the sandbox's suspended state. If neither exists, both values are 0.
func (v *View) Machine(s sandbox.Info) (vcpus uint32, diskBytes uint64) {
	i, err := v.host.manager.Snapshots().Info(s.SnapshotTag)
	if err != nil {
		i, _ = v.host.manager.Snapshots().Info(s.StateTag) // after an error, i is empty
	}
	return i.Machine.VCPUs, i.Base.Bytes
}

// maxNamed is the maximum number of sandboxes that the error of a deletion names.
const maxNamed = 5

// DeleteSnapshot calls store.Delete. If sandboxes run from the snapshot, the error names some of
// the sandboxes that the principal may see.
func (v *View) DeleteSnapshot(tag string, mode store.DeleteMode) error {
	if err := v.hasTag(tag); err != nil {
		return err
	}
	_, err := v.host.manager.Snapshots().Delete(tag, mode)
	if used := (*store.InUseError)(nil); errors.As(err, &used) && used.Leases > 0 {
		for _, s := range v.Sandboxes() {
			if len(used.Sandboxes) < maxNamed && (s.SnapshotTag == used.Tag || s.StateTag == used.Tag) {
				used.Sandboxes = append(used.Sandboxes, s.ID)
			}
		}
	}
	return err
}

// VerifySnapshot calls store.Verify. If too many verifications are running, it first waits.
func (v *View) VerifySnapshot(ctx context.Context, tag string) error {
	if err := v.hasTag(tag); err != nil {
		return err
	}
	release, err := owner.TakePlace(v.as(ctx), v.host.verifies, "")
	if err != nil {
		return err
	}
	defer release()
	return v.host.manager.Snapshots().Verify(ctx, tag)
}

// Encrypt calls c.Encrypt. Encrypt, Decrypt and Shred need a principal without a prefix, because
// snapshots of other principals may have data of the snapshot.
func (v *View) Encrypt(ctx context.Context, c *atrest.Crypter, tag string) (atrest.Result, error) {
	if err := v.mayCrypt(tag); err != nil {
		return atrest.Result{}, err
	}
	return c.Encrypt(ctx, tag)
}

// Decrypt calls c.Decrypt.
func (v *View) Decrypt(ctx context.Context, c *atrest.Crypter, tag string) (atrest.Result, error) {
	if err := v.mayCrypt(tag); err != nil {
		return atrest.Result{}, err
	}
	return c.Decrypt(ctx, tag)
}

// Shred calls c.Shred.
func (v *View) Shred(ctx context.Context, c *atrest.Crypter, tag string) (atrest.Result, error) {
	if err := v.mayCrypt(tag); err != nil {
		return atrest.Result{}, err
	}
	return c.Shred(ctx, tag)
}

func (v *View) mayCrypt(tag string) error {
	if err := v.hasTag(tag); err != nil {
		return err
	}
	return v.Limited("the encryption of snapshots")
}

// Compact copies a snapshot to a new snapshot that does not build on another snapshot.
func (v *View) Compact(ctx context.Context, from, to string) (store.Info, error) {
	if err := v.hasTag(from); err != nil {
		return store.Info{}, err
	}
	return chain.Compact(v.as(ctx), v.host.manager.Snapshots(), from, to, nil)
}
