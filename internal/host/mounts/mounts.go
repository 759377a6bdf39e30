// Package mounts gives volumes to sandboxes. It opens the disks for a VM, and tells the guest to
// mount and unmount them. Package volume stores the volumes, and package sandbox decides the order
// of the steps.
//
// A volume is a disk with a name, which outlives the sandboxes that use it. A machine has a fixed
// number of volume slots, each for one volume. The disk of a volume consists of layers. The VM
// writes only to the last layer, the top.
package mounts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/loglimit"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/host/volume"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/diffproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Mount is a volume that a sandbox mounts, or a free slot below the slot of another volume.
type Mount = record.Mount

// Used returns the mounts without the free slots.
func Used(mounts []Mount) (list []Mount) {
	for _, m := range mounts {
		if !m.IsFree() {
			list = append(list, m)
		}
	}
	return list
}

// place puts m into the lowest free slot. It returns the new list of mounts and the number of the
// slot.
func place(mounts []Mount, m Mount) (list []Mount, slot int) {
	list = slices.Clone(mounts)
	if slot = slices.IndexFunc(list, func(m Mount) bool { return m.IsFree() }); slot >= 0 {
		list[slot] = m
		return list, slot
	}
	return append(list, m), len(list)
}

// trim returns the mounts without the free slots after the last volume. A record has no such slots.
func trim(mounts []Mount) []Mount {
	n := len(mounts)
	for n > 0 && mounts[n-1].IsFree() {
		n--
	}
	return mounts[:n:n]
}

// SlotsError reports that a snapshot has too few volume slots for the volumes of a request.
type SlotsError struct {
	Tag           string
	Slots, Wanted int
}

func (e *SlotsError) Error() string {
	return fmt.Sprintf("volume slots of snapshot %q: %d, want at least %d: make a snapshot with more volume slots "+
		"(forkd build --from %s --tag NEW --volume-slots %d)", e.Tag, e.Slots, e.Wanted, e.Tag, e.Wanted)
}

// HeldError reports an operation that is not possible for a sandbox with volumes.
type HeldError struct{ Op, ID, Why string }

func (e *HeldError) Error() string {
	return fmt.Sprintf("%s sandbox %q: it has mounted volumes: %s", e.Op, e.ID, e.Why)
}

// Check checks the volumes in a request for n sandboxes.
func Check(mounts []Mount, n int) error {
	if len(mounts) > vm.MaxVolumeSlots {
		return invalid.Errorf("volumes", "%d: want at most %d", len(mounts), vm.MaxVolumeSlots)
	}
	for i, m := range mounts {
		if err := check(m, mounts[:i], n); err != nil {
			return invalid.Errorf(fmt.Sprintf("volumes[%d].%s", i, err.Field), "%s", err.Reason)
		}
	}
	return nil
}

// check checks the mount m and compares it with the earlier mounts of the request. The field in its
// error lacks the index of the mount.
func check(m Mount, earlier []Mount, n int) *invalid.Error {
	if err := snapshot.CheckTag(m.Name); err != nil {
		return &invalid.Error{Field: "name", Reason: err.Error()}
	}
	if err := agentproto.CheckVolumePath(m.Path); err != nil {
		return &invalid.Error{Field: "path", Reason: err.Error()}
	}
	switch {
	case m.Mode != record.MountWriter && m.Mode != record.MountReadOnly && m.Mode != record.MountCopy:
		return &invalid.Error{Field: "mode", Reason: fmt.Sprintf("%.70q: want %q or %q, or no mode, to write to the volume",
			m.Mode, record.MountReadOnly, record.MountCopy)}
	case m.Mode == record.MountWriter && n > 1:
		return &invalid.Error{Field: "mode", Reason: fmt.Sprintf("none, and n is %d: "+
			"only one sandbox can write to a volume; "+
			"want %q or %q", n, record.MountReadOnly, record.MountCopy)}
	}
	for _, e := range earlier {
		switch {
		case e.Name == m.Name:
			return &invalid.Error{Field: "name", Reason: fmt.Sprintf("%q: it is mounted twice", m.Name)}
		case !e.IsFree() && overlap(m.Path, e.Path):
			return &invalid.Error{Field: "path", Reason: fmt.Sprintf("%.200q: it hides, or is hidden by, the volume at %.200q",
				m.Path, e.Path)}
		}
	}
	return nil
}

// overlap reports whether a volume at one of two paths hides the other path.
func overlap(a, b string) bool { return diffproto.IsBelow(a, b) || diffproto.IsBelow(b, a) }

// maxLayers is the number of layers at which Admit merges the layers of a volume. If each volume
// has fewer layers, the files of all slots fit into one request to a VMM.
const maxLayers = 8

// Admit checks whether the children of a snapshot can mount the volumes, in addition to the volumes
// of the snapshot. It merges the layers of a volume with too many layers, which takes time. The
// error is a *SlotsError, a *volume.Error, a *volume.InUseError, an *invalid.Error, or an error of
// a merge. The volumes can still change before Open is called.
func Admit(ctx context.Context, st *volume.Store, mounts []Mount, parent *snapshot.Manifest) error {
	if n := len(parent.Volumes); st == nil && n > 0 {
		return &volume.Error{Name: parent.Volumes[n-1].Name}
	}
	var infos []volume.Info
	for _, m := range mounts {
		if st == nil {
			return &volume.Error{Name: m.Name}
		}
		i, err := st.Get(m.Name)
		if err != nil {
			return err
		}
		infos = append(infos, i)
	}
	// Check the slots after the volumes. If a volume does not exist, the client must not be told to
	// use a snapshot with more slots.
	wanted := len(mounts)
	for _, v := range parent.Volumes {
		if !v.Free {
			wanted++
		}
	}
	if have := int(parent.Machine.VolumeSlots); len(mounts) > 0 && have < wanted {
		return &SlotsError{Tag: parent.Tag, Slots: have, Wanted: wanted}
	}
	for n, m := range mounts {
		for _, v := range parent.Volumes {
			if !v.Free && overlap(m.Path, v.Path) {
				return invalid.Errorf(fmt.Sprintf("volumes[%d].path", n),
					"%.200q: it hides, or is hidden by, the volume at %.200q of the snapshot", m.Path, v.Path)
			}
		}
	}
	for n, m := range mounts {
		i := infos[n]
		if i.Writer != "" && m.Mode == record.MountWriter {
			return &volume.InUseError{Name: m.Name, SandboxID: i.Writer}
		}
		if i.Layers >= maxLayers && i.Writer == "" { // a writer merges them itself, see Store.MergeBelow
			if err := st.Merge(ctx, m.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// Error reports a volume that a guest could not mount or unmount.
type Error struct {
	Mount
	Op  string // "mount" or "unmount"
	Err error
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s volume %q at %q: %v", e.Op, e.Name, e.Path, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// InGuest tells a guest to mount the volumes. Volumes that are already mounted stay mounted. The
// error is an *Error.
func InGuest(ctx context.Context, dial agentclient.DialFunc, mounts []Mount) error {
	for i, m := range mounts {
		if m.IsFree() {
			continue
		}
		if err := inGuest(ctx, dial, i, m); err != nil {
			return err
		}
	}
	return nil
}

func inGuest(ctx context.Context, dial agentclient.DialFunc, slot int, m Mount) error {
	v := agentproto.Volume{Slot: slot, Path: m.Path, ReadOnly: m.Mode == record.MountReadOnly}
	if err := agentclient.New(dial).Mount(ctx, v); err != nil {
		return &Error{Mount: m, Op: "mount", Err: err}
	}
	return nil
}

// unmountTime bounds the time for unmounting the volumes of a sandbox that is being deleted.
const unmountTime = 10 * time.Second

// Leave is for a VM that is about to be killed. It tells the guest to unmount the volumes that the
// guest writes to. The guest first writes all data to them. If the guest does not do that in time,
// or if the VM is paused, the volumes are as after a power failure. The log lines about failures
// are limited, because guests cause them.
func Leave(log *slog.Logger, lines *loglimit.Lines, sandbox string, v vmpool.VMM, dial agentclient.DialFunc,
	mounts []Mount) {
	if len(mounts) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), unmountTime)
	defer cancel()
	ctx, stop := vmpool.WhileAlive(ctx, v)
	defer stop()
	stats, err := v.Stats(ctx)
	if err == nil && stats.Paused {
		err = errors.New("the VM is paused")
	}
	for i, m := range mounts {
		if m.Mode != record.MountWriter {
			continue
		}
		if err == nil {
			err = agentclient.New(dial).Unmount(ctx, agentproto.Volume{Slot: i, Path: m.Path})
		}
		if err != nil {
			lines.Log(log, slog.LevelWarn, "a volume was not unmounted before its sandbox ended", "name", m.Name,
				"sandbox", sandbox, "error", loglimit.Cut(err.Error()))
		}
		if !errors.As(err, new(*agentclient.Error)) {
			continue // after any other error, do not ask the guest again
		}
		err = nil // the guest has answered, so ask it for the next volume
	}
}
