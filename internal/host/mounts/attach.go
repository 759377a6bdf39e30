package mounts

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/host/writers"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Live is a running sandbox whose volumes change. A volume is attached in the lowest free slot, and
// leaves its slot free when it is detached.
//
// The sandbox's record names the volumes. A volume is in the record before the VM gets it, and
// stays there until the guest has unmounted it. If the daemon is killed between these steps, Fit
// makes the record, the VM and the records of the volumes consistent: afterwards the volume is
// attached only if both the VM and the record had it.
type Live struct {
	*Set
	VMM    vmpool.VMM
	Dial   agentclient.DialFunc
	Mounts []Mount
	Save   func([]Mount) error // replaces the mounts in the sandbox's record
	Settle func() error        // calls Fit
}

// NotMountedError reports a volume that a sandbox has not mounted.
type NotMountedError struct{ Sandbox, Name string }

func (e *NotMountedError) Error() string {
	return fmt.Sprintf("volume %.100q: sandbox %q has not mounted it", e.Name, e.Sandbox)
}

// BusyError reports a volume that a guest has refused to unmount, usually because a program uses it.
type BusyError struct {
	Mount
	Sandbox string
	Err     error
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("detach volume %q from sandbox %q: %v", e.Name, e.Sandbox, e.Err)
}

// CheckMore checks whether a sandbox can mount another volume. The sandbox runs from the given
// snapshot. If the volume has too many layers, CheckMore merges them. It returns the same errors as
// Admit.
func (l *Live) CheckMore(ctx context.Context, m Mount, parent *snapshot.Manifest) error {
	if err := check(m, l.Mounts, 1); err != nil {
		return invalid.Errorf(err.Field, "%s", err.Reason)
	}
	slots := *parent
	slots.Volumes = make([]snapshot.Volume, len(l.Mounts)) // the volumes that take slots now
	for i, has := range l.Mounts {
		slots.Volumes[i] = snapshot.Volume{Free: has.IsFree(), Name: has.Name, Path: has.Path}
	}
	return Admit(ctx, l.Store, []Mount{m}, &slots)
}

// Attach mounts another volume in the sandbox. CheckMore must have returned nil. After an error,
// the sandbox has its former volumes. If the daemon could not write a record or ask the VMM, this
// is true only after the next call of Settle.
func (l *Live) Attach(ctx context.Context, m Mount) error {
	list, slot := place(l.Mounts, m)
	if err := l.Save(list); err != nil {
		return err
	}
	err := l.put(ctx, slot, m)
	if err == nil {
		err = inGuest(ctx, l.Dial, slot, m)
	}
	if err == nil {
		return nil
	}
	if failed := (*Error)(nil); errors.As(err, &failed) {
		failed.Err = vmpool.Cause(ctx, failed.Err)
	}
	undo := l.Save(l.Mounts)
	if undo == nil {
		undo = l.Settle()
	}
	return errors.Join(err, undo)
}

// put gives the VM the disk of a volume.
func (l *Live) put(ctx context.Context, slot int, m Mount) error {
	disk := l.disk(slot, m)
	if disk.Copy != "" { // an earlier copy, whose removal failed
		if err := writers.RemoveAll(disk.Copy, writers.Patience); err != nil {
			return err
		}
	}
	d := &Disks{}
	defer d.Close()
	o := &opening{Disks: d, set: l.Set, ctx: ctx, mount: m, disk: disk}
	f, err := o.open()
	if err != nil {
		return err
	}
	d.files = append(f.Lower, f.Top)
	// The outcome must be known, even if the client gives up.
	return l.VMM.SetVolume(context.WithoutCancel(ctx), 1+slot, f.SizeBytes, d.files)
}

// slotOf returns the slot of a mounted volume, or -1. If the sandbox writes to the volume and also
// has a copy of it from its snapshot, slotOf returns the slot of the volume itself.
func slotOf(mounts []Mount, name string) int {
	writer := slices.IndexFunc(mounts, func(m Mount) bool { return m.Name == name && m.Mode == record.MountWriter })
	if writer >= 0 {
		return writer
	}
	return slices.IndexFunc(mounts, func(m Mount) bool { return m.Name == name && !m.IsFree() })
}

// Detach unmounts a volume in the sandbox. The volume then has no writer. If the guest refuses,
// because a program uses the volume (*BusyError), or does not answer (*Error), the volume stays
// attached. If the sandbox does not have the volume, the error is a *NotMountedError. If the change
// cannot be recorded, the guest mounts the volume again. If the VMM does not give the disk up, the
// next call of Settle does the rest.
func (l *Live) Detach(ctx context.Context, name string) error {
	slot := slotOf(l.Mounts, name)
	if slot < 0 {
		return &NotMountedError{Sandbox: l.Sandbox, Name: name}
	}
	m := l.Mounts[slot]
	if err := agentclient.New(l.Dial).Unmount(ctx, agentproto.Volume{Slot: slot, Path: m.Path}); err != nil {
		if refused := (*agentclient.Error)(nil); errors.As(err, &refused) {
			return &BusyError{Sandbox: l.Sandbox, Mount: m, Err: err}
		}
		return &Error{Mount: m, Op: "unmount", Err: vmpool.Cause(ctx, err)}
	}
	// If the sandbox returns to its latest suspended state, another sandbox may be using the
	// volume, whose content must not change. So in that state, the sandbox gets its own copy of the
	// content.
	err := ledger.UpdateSuspended(l.Dir, func(r *ledger.Record) {
		r.Volumes = slices.Clone(r.Volumes)
		for i, v := range r.Volumes {
			if v.Name == name && v.Mode == record.MountWriter {
				r.Volumes[i].Mode = record.MountCopy
			}
		}
	})
	if err == nil {
		left := slices.Clone(l.Mounts)
		left[slot] = Mount{Mode: record.MountFree}
		err = l.Save(trim(left))
	}
	if err != nil {
		return errors.Join(err, inGuest(ctx, l.Dial, slot, m))
	}
	return l.Settle()
}

// Fit finds out which of its volumes a sandbox still has after an interrupted Attach or Detach, and
// returns them. The bits of filled say which slots of the VMM have disks (vm.Stats). The VM loses the
// disks in all slots except those of the volumes that the sandbox still has. The volumes that the
// sandbox has lost have no writer afterwards. If nothing was interrupted, Fit does nothing.
func (s *Set) Fit(ctx context.Context, v vmpool.VMM, filled uint32, mounts []Mount) (kept []Mount, err error) {
	kept = slices.Clone(mounts)
	for slot := range vm.MaxVolumeSlots {
		has := filled&(1<<slot) != 0
		switch named := slot < len(mounts) && !mounts[slot].IsFree(); {
		case named && !has:
			kept[slot] = Mount{Mode: record.MountFree}
		case has && !named:
			if err := v.SetVolume(ctx, 1+slot, 0, nil); err != nil {
				return nil, err
			}
			// Files that cannot be removed now are removed with the sandbox.
			_ = writers.RemoveAll(filepath.Join(s.Dir, fmt.Sprint(ledger.VolumeFiles, slot)), 0)
		}
	}
	kept = trim(kept)
	s.Keep(kept)
	return kept, nil
}

// Keep ends the sandbox's role as the writer of all volumes that are not among the mounts. The VM
// of the sandbox must have closed these volumes.
func (s *Set) Keep(mounts []Mount) {
	var names []string
	for _, m := range mounts {
		if m.Mode == record.MountWriter {
			names = append(names, m.Name)
		}
	}
	s.Store.ReleaseAll(s.Sandbox, names...)
}
