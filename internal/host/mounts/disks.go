package mounts

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/host/volume"
	"github.com/forkd/forkd/internal/host/writers"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Set has the disks in the volume slots of a sandbox. The index of a mount is the number of its slot.
// Only one operation at a time may use a Set, apart from the deletion of the sandbox. If the sandbox is
// deleted during an operation, the operation returns an error.
type Set struct {
	Store   *volume.Store // nil: there are no volumes
	Sandbox string
	Owner   string // owner of the sandbox
	Dir     string // the sandbox's data directory, which has its copies of volumes
}

// disk returns the disk in a slot.
func (s *Set) disk(slot int, m Mount) volume.Disk {
	d := volume.Disk{Sandbox: s.Sandbox, Owner: s.Owner, Name: m.Name}
	if m.Mode != record.MountWriter {
		d.Copy = filepath.Join(s.Dir, fmt.Sprint(ledger.VolumeFiles, slot))
	}
	return d
}

// Inherit returns the mounts of a child of a snapshot. The child has copies of the volumes in the
// snapshot, in the same slots. The lowest other slots have the volumes in own, which the fork's
// request names.
func Inherit(parent *snapshot.Manifest, own []Mount) (list []Mount) {
	for i := range parent.Volumes {
		list = append(list, inherited(&parent.Volumes[i]))
	}
	for _, m := range own {
		list, _ = place(list, m)
	}
	return list
}

// inherited returns the mount for a copy of a snapshot's volume.
func inherited(v *snapshot.Volume) Mount {
	m := Mount{Name: v.Name, Path: v.Path, Mode: record.MountCopy}
	switch {
	case v.Free:
		m.Mode = record.MountFree
	case v.ReadOnly:
		m.Mode = record.MountReadOnly
	}
	return m
}

// Combine returns the mounts of a sandbox after a rollback to a snapshot. The sandbox keeps its
// mounts; their volumes get the content of the snapshot. If the snapshot has more volumes, the
// sandbox gets copies of them. If the snapshot lacks a volume, the sandbox mounts it again, with
// its present content. The error is a *HeldError if the snapshot has a different volume in a slot
// of the sandbox.
func (s *Set) Combine(ctx context.Context, op string, mounts []Mount, to *snapshot.Manifest) ([]Mount, error) {
	list := slices.Clone(mounts)
	for i := range to.Volumes {
		v := &to.Volumes[i]
		switch {
		case i >= len(list):
			list = append(list, inherited(v))
			continue
		case list[i].IsFree():
			list[i] = inherited(v)
			continue
		case v.Free:
			continue
		}
		id, err := s.Store.IDOf(ctx, s.disk(i, list[i]))
		if err != nil {
			return nil, err
		}
		if id != v.ID || v.ReadOnly != (list[i].Mode == record.MountReadOnly) {
			return nil, &HeldError{Op: op, ID: s.Sandbox, Why: fmt.Sprintf("volume slot %d has the volume %q, and in "+
				"snapshot %q it has another volume, %q, or another mode: fork the snapshot instead", i, list[i].Name, to.Tag,
				v.Name)}
		}
		list[i].Path = v.Path
	}
	if slots := int(to.Machine.VolumeSlots); len(list) > slots {
		return nil, &SlotsError{Tag: to.Tag, Slots: slots, Wanted: len(list)}
	}
	for i := range list {
		for _, other := range list[:i] {
			if !list[i].IsFree() && !other.IsFree() && overlap(list[i].Path, other.Path) {
				return nil, &HeldError{Op: op, ID: s.Sandbox, Why: fmt.Sprintf("after it, the volume %q at %q would hide the "+
					"volume %q at %q: fork the snapshot instead", list[i].Name, list[i].Path, other.Name, other.Path)}
			}
		}
	}
	return list, nil
}

// Snapshot is a leased snapshot, see store.Lease.
type Snapshot interface {
	Manifest() *snapshot.Manifest
	Volumes() [][]*os.File
}

// Disks are the open disks of a sandbox for a VM that is about to run a snapshot.
type Disks struct {
	Volumes []chain.Volume
	// Again has a mount for each slot in Volumes. Mounts with the mode record.MountWriter are
	// volumes that the snapshot lacks: the present guest must unmount them before the restore.
	Again []Mount

	leave   func() // gives back the place that Open has taken; nil if it has taken none
	commits []func(context.Context) error
	ends    []func(ctx context.Context, restored bool) error
	files   []*os.File
	ended   bool
}

// Open opens the disks of a sandbox for a VM that is about to run a snapshot. Volumes in the
// snapshot get the content that they have in the snapshot. If a volume that is not in the snapshot
// has the mode record.MountWriter, the sandbox becomes its writer until Store.ReleaseAll; in other
// modes, the sandbox gets a copy of the volume's present content. The caller must call Commit
// before the restore, End after it, and Close.
//
// If running is set, a VM of the sandbox runs, and uses the disks until it is restored. If running
// is not set, an earlier VM has ended.
func (s *Set) Open(ctx context.Context, mounts []Mount, from Snapshot, running bool) (_ *Disks, err error) {
	d := &Disks{}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	saved := from.Manifest().Volumes
	for i, m := range mounts {
		if m.IsFree() {
			d.Volumes, d.Again = append(d.Volumes, chain.Volume{}), append(d.Again, m)
			continue
		}
		o := &opening{Disks: d, set: s, ctx: ctx, mount: m, disk: s.disk(i, m), running: running}
		if i < len(saved) && !saved[i].Free {
			o.from, o.files = &saved[i], from.Volumes()[i]
		}
		f, err := o.open()
		if err != nil {
			return nil, err
		}
		d.files = append(append(d.files, f.Lower...), f.Top)
		d.Volumes = append(d.Volumes, chain.Volume{SizeBytes: f.SizeBytes, Files: append(f.Lower, f.Top)})
		if !running || o.from != nil {
			m.Mode = record.MountReadOnly
		}
		d.Again = append(d.Again, m)
	}
	return d, nil
}

// OpenFirst is like Open, for a new sandbox. The caller has a place in the gate places; calling
// leave gives it back. If there are volumes, OpenFirst first gives back this place, because other
// forks must not wait while OpenFirst waits for the lock of a volume. Later it takes a new place.
func (s *Set) OpenFirst(ctx context.Context, mounts []Mount, from Snapshot, leave func(), places *gate.Gate) (
	*Disks, error) {
	if len(mounts) == 0 {
		return &Disks{}, nil
	}
	leave()
	d, err := s.Open(ctx, mounts, from, false)
	if err != nil {
		return nil, err
	}
	if d.leave, err = owner.TakePlace(ctx, places, ""); err == nil {
		err = d.Commit(ctx)
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// opening is the opening of one disk.
type opening struct {
	*Disks
	set     *Set
	ctx     context.Context
	mount   Mount
	disk    volume.Disk
	running bool
	from    *snapshot.Volume // the volume in the snapshot; nil: the snapshot lacks it
	files   []*os.File       // files of from
}

func (o *opening) open() (*volume.Files, error) {
	st, ctx := o.set.Store, o.ctx
	_, err := os.Lstat(o.disk.Copy)
	isCopy, exists := o.disk.Copy != "", err == nil
	switch {
	case isCopy && exists && !o.running: // the copy belonged to a VM that has ended
		if err := os.RemoveAll(o.disk.Copy); err != nil {
			return nil, err
		}
	case !isCopy && o.from != nil, isCopy && exists && o.from != nil:
		return o.goBack()
	case o.running && o.from == nil:
		return o.swap()
	case !isCopy:
		return st.Write(ctx, o.disk.Name, o.disk.Sandbox)
	}
	if o.from != nil {
		err = st.CopyFrom(o.disk, o.from, o.files)
	} else {
		err = st.Copy(ctx, o.disk)
	}
	if err != nil {
		return nil, err
	}
	o.ends = append(o.ends, func(_ context.Context, restored bool) error {
		if !restored && o.running {
			return os.RemoveAll(o.disk.Copy) // a copy that the sandbox did not have before
		}
		return nil
	})
	return st.OpenCopy(ctx, o.disk)
}

// goBack opens a disk whose content goes back to the content in the snapshot.
func (o *opening) goBack() (*volume.Files, error) {
	b, err := o.set.Store.GoBack(o.ctx, o.disk, o.from, o.files)
	if err != nil {
		return nil, err
	}
	o.commits = append(o.commits, b.Commit)
	o.ends = append(o.ends, func(ctx context.Context, _ bool) error {
		b.Finish(ctx)
		return nil
	})
	return b.Files, nil
}

// swap opens a disk that keeps its present content, even though the VM that writes to it is
// restored.
func (o *opening) swap() (*volume.Files, error) {
	f, top, err := o.set.Store.BeginSwap(o.ctx, o.disk)
	if err != nil {
		return nil, err
	}
	o.ends = append(o.ends, func(ctx context.Context, restored bool) error {
		if restored && o.disk.Copy == "" { // the guest's next flush does not include the former top
			if err := o.set.Store.Sync(f.Lower); err != nil {
				return err
			}
		}
		return o.set.Store.EndSwap(ctx, o.disk, top, restored)
	})
	return f, nil
}

// Commit changes the content of the volumes to their content in the snapshot. Data that the sandbox
// has written since the snapshot is then lost.
func (d *Disks) Commit(ctx context.Context) error {
	for _, commit := range d.commits {
		if err := commit(ctx); err != nil {
			return err
		}
	}
	return nil
}

// End records that the VM has been restored with the disks.
func (d *Disks) End(ctx context.Context) error {
	d.ended = true
	for _, end := range d.ends {
		if err := end(ctx, true); err != nil {
			return err
		}
	}
	return nil
}

// Close closes the files, and gives back the place that OpenFirst has taken. If End was not called,
// it removes what Open has made.
func (d *Disks) Close() {
	if d.leave != nil {
		d.leave()
	}
	for _, f := range d.files {
		_ = f.Close() // nothing was written through these descriptors
	}
	if d.ended {
		return
	}
	for _, end := range d.ends {
		_ = end(context.Background(), false) // files that are left are removed at the next start, or with the sandbox
	}
}

// Tops are the new tops of a sandbox's volumes, to which its VM is about to switch.
type Tops struct {
	New    []*os.File // for each volume, an empty top
	Frozen []*os.File // for each volume, the present top, open for reading
	Names  []string   // for each slot, the name of the new top for Settle; empty for a free slot

	below []*os.File // all files in all slots that were tops of a VM, including Frozen
}

// Freeze makes new tops for the volumes of a sandbox whose VM is about to be branched. After this,
// the VM may write to the new tops. When undo runs, it closes the files. Before it makes new tops,
// Freeze merges the layers of volumes that have too many layers: earlier branches may have failed
// before their merges, or had no room for them.
func (s *Set) Freeze(ctx context.Context, log *slog.Logger, v vmpool.VMM, mounts []Mount, undo *cleanup.Stack) (
	t Tops, err error) {
	if len(mounts) > 0 {
		alive, stop := vmpool.WhileAlive(ctx, v) // a deletion waits for the volumes
		s.merge(alive, log, mounts, v)
		stop()
	}
	for i, m := range mounts {
		if m.IsFree() {
			t.Names = append(t.Names, "")
			continue
		}
		f, name, err := s.Store.BeginSwap(ctx, s.disk(i, m))
		if err != nil {
			return t, err
		}
		undo.Add(f.Close)
		t.New, t.Names = append(t.New, f.Top), append(t.Names, name)
		t.Frozen = append(t.Frozen, f.Lower[len(f.Lower)-1])
		t.below = append(t.below, f.Lower[1:]...)
	}
	return t, nil
}

// CloseNew closes the new tops.
func (t *Tops) CloseNew() {
	for _, f := range t.New {
		_ = f.Close() // nothing was written through these descriptors
	}
}

// Settle records whether the VM has switched to the new tops. The names are those in Tops.Names.
// Settle may be called again after an error.
func (s *Set) Settle(ctx context.Context, mounts []Mount, names []string, swapped bool) error {
	if len(names) > len(mounts) {
		return fmt.Errorf("%d new tops for %d volumes", len(names), len(mounts))
	}
	for i, name := range names {
		switch free := mounts[i].IsFree(); {
		case free != (name == ""):
			return fmt.Errorf("volume slot %d: a new top %.100q, and a volume %.100q", i, name, mounts[i].Name)
		case free:
			continue
		}
		if err := s.Store.EndSwap(ctx, s.disk(i, mounts[i]), name, swapped); err != nil {
			return err
		}
	}
	return nil
}

// merge merges the layers of volumes that have too many layers, and switches the VMM to the merged
// layers. It logs errors. After an error, the volume keeps its layers, or the VMM keeps the old
// files.
func (s *Set) merge(ctx context.Context, log *slog.Logger, mounts []Mount, v vmpool.VMM) {
	for i, m := range mounts {
		if m.IsFree() {
			continue
		}
		err := s.Store.MergeBelow(ctx, s.disk(i, m), func(merged *os.File) error {
			return v.Merge(context.WithoutCancel(ctx), vmmproto.Merge{Disk: uint32(1 + i)}, merged)
		})
		if err != nil {
			log.Warn("merge the layers of a volume", "sandbox", s.Sandbox, "name", m.Name, "error", err)
		}
	}
}

// Save adds the volumes of a branched sandbox to a snapshot, with the content that they had when
// the sandbox was branched. If a volume has too many layers, Save first merges them.
func (s *Set) Save(ctx context.Context, log *slog.Logger, v vmpool.VMM, mounts []Mount, m *snapshot.Manifest,
	g *store.Staging) error {
	s.merge(ctx, log, mounts, v)
	var files [][]*os.File
	defer func() {
		for _, f := range slices.Concat(files...) {
			_ = f.Close() // open for reading only
		}
	}()
	for i, mount := range mounts {
		if mount.IsFree() {
			files, m.Volumes = append(files, nil), append(m.Volumes, snapshot.Volume{Free: true})
			continue
		}
		c, list, err := s.Store.Content(ctx, s.disk(i, mount))
		if err != nil {
			return err
		}
		files = append(files, list)
		c.Name, c.Path, c.ReadOnly = mount.Name, mount.Path, mount.Mode == record.MountReadOnly
		m.Volumes = append(m.Volumes, c)
	}
	return g.LinkVolumes(m.Volumes, files)
}

// Suspend turns the data that a sandbox has written to its volumes into a part of their content.
// The sandbox's VM must have ended. The sandbox stays the writer of the volumes.
func (s *Set) Suspend(ctx context.Context, log *slog.Logger, mounts []Mount) {
	for i, m := range mounts {
		if m.Mode != record.MountWriter {
			continue
		}
		if err := s.Store.Suspend(ctx, s.disk(i, m)); err != nil {
			log.Error("a volume keeps the top of a suspended sandbox", "name", m.Name, "sandbox", s.Sandbox, "error", err)
		}
	}
}

// syncTime is how long a VMM may have a former top of a volume open for writing. A guest's flush, which
// may take long on a slow disk, ends after the VMM has switched to a new top.
const syncTime = 2 * time.Minute

// Synced returns the former tops, after the VMM has closed them for writing. If the VMM does not
// close a file in time, the caller must refuse this file. The result includes tops of earlier
// branches, because those branches may have failed before their tops were checked.
func (t *Tops) Synced() []*os.File {
	for _, f := range t.Frozen {
		_ = writers.None(f.Name(), syncTime) // the caller checks it again
	}
	return t.below
}

// CheckDiskOnly returns a *HeldError for a disk-only branch of a sandbox that has volumes.
func CheckDiskOnly(sandbox string, mounts []Mount) error {
	if len(mounts) == 0 {
		return nil
	}
	return &HeldError{Op: "branch the disk of", ID: sandbox, Why: "a disk-only snapshot includes no volumes: branch the " +
		"memory too, or end the sandbox and fork another one with a copy of the volume (forkd volume snapshot)"}
}
