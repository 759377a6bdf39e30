package tenancy

import (
	"context"

	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/volume"
)

// Volume returns the Info of a volume.
func (v *View) Volume(name string) (volume.Info, error) {
	if err := v.HasVolume(name); err != nil {
		return volume.Info{}, err
	}
	return v.host.volumes.Get(name)
}

// VolumeWithID returns the Info of the volume with the given id. It treats a volume that the
// principal may not see as missing.
func (v *View) VolumeWithID(id string) (volume.Info, error) {
	if v.isEmpty() {
		return volume.Info{}, &volume.Error{Name: id}
	}
	return v.host.volumes.GetID(id, v.p.Prefix.HasTag)
}

// HasVolume returns a *volume.Error for "not found" if the principal may not see volumes with this
// name. It does not check whether the volume exists.
func (v *View) HasVolume(name string) error {
	if v.isEmpty() || !v.p.Prefix.HasTag(name) {
		return &volume.Error{Name: name}
	}
	return nil
}

// haveVolumes is like HasVolume, for several volumes.
func (v *View) haveVolumes(list []mounts.Mount) error {
	for _, m := range list {
		if err := v.HasVolume(m.Name); err != nil {
			return err
		}
	}
	return nil
}

// Volumes returns the Info of all volumes that the principal may see.
func (v *View) Volumes() []volume.Info {
	if v.isEmpty() {
		return nil
	}
	return v.host.volumes.List(v.p.Prefix.HasTag)
}

// CreateVolume calls Store.Create for the principal, which owns the volume. If the principal may not
// use the name, the error is an *owner.PrefixError.
func (v *View) CreateVolume(req volume.Request) (volume.Info, error) {
	if v.isEmpty() {
		return volume.Info{}, &volume.Error{Name: req.Name}
	}
	if err := v.MayName("name", req.Name); err != nil {
		return volume.Info{}, err
	}
	req.Owner = v.p.Name
	return v.host.volumes.Create(req)
}

// SnapshotVolume calls Store.Snapshot for the principal, which owns the new volume. If the principal
// may not use the name, the error is an *owner.PrefixError.
func (v *View) SnapshotVolume(ctx context.Context, from string, req volume.Request) (volume.Info, error) {
	if err := v.HasVolume(from); err != nil {
		return volume.Info{}, err
	}
	if err := v.MayName("name", req.Name); err != nil {
		return volume.Info{}, err
	}
	req.Owner = v.p.Name
	return v.host.volumes.Snapshot(ctx, from, req)
}

// RemoveVolume calls Store.Remove.
func (v *View) RemoveVolume(ctx context.Context, name string) error {
	if err := v.HasVolume(name); err != nil {
		return err
	}
	return v.host.volumes.Remove(ctx, name)
}

// RemoveVolumeWithID calls Store.RemoveID for the volume with the given id; see VolumeWithID.
func (v *View) RemoveVolumeWithID(ctx context.Context, id string) error {
	i, err := v.VolumeWithID(id)
	if err != nil {
		return err
	}
	return v.host.volumes.RemoveID(ctx, i.Name, id)
}

// AttachVolume calls Manager.Attach, if the principal may see the sandbox and the volume.
func (v *View) AttachVolume(ctx context.Context, id string, mount mounts.Mount) (sandbox.Info, error) {
	return reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (sandbox.Info, error) {
		if err := v.HasVolume(mount.Name); err != nil {
			return sandbox.Info{}, err
		}
		return m.Attach(ctx, id, mount)
	})
}

// DetachVolume calls Manager.Detach, if the principal may see the sandbox and the volume.
func (v *View) DetachVolume(ctx context.Context, id, volume string) (sandbox.Info, error) {
	return reached(ctx, v, id, func(ctx context.Context, m *sandbox.Manager) (sandbox.Info, error) {
		if err := v.HasVolume(volume); err != nil {
			return sandbox.Info{}, err
		}
		return m.Detach(ctx, id, volume)
	})
}

// OwnerOfVolume returns the name of a volume's owner; see OwnerOf.
func (v *View) OwnerOfVolume(i volume.Info) string {
	if v.isEmpty() || v.p.Prefix != "" {
		return ""
	}
	return i.Owner
}
