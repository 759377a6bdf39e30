package chain

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Source describes the sandbox that a snapshot was branched from. It says how the sandbox was
// branched, and which settings children inherit.
type Source struct {
	Branch  snapshot.Branch
	Network *snapshot.Network
	Limits  vm.Limits
	Hooks   snapshot.Hooks
	Strict  bool
}

// Compact copies the snapshot that has the first tag to a new snapshot, which gets the second tag.
// The new snapshot inherits no layers: it has one memory layer and one disk layer. Volumes keep
// their layers. The last parameter describes the source sandbox, and may be nil.
func Compact(ctx context.Context, st *store.Store, from, to string, of *Source) (store.Info, error) {
	if from == to {
		return store.Info{}, &invalid.Error{Field: "to", Reason: "the snapshot itself; choose another tag"}
	}
	lease, err := st.AcquireInClear(from)
	if err != nil {
		return store.Info{}, err
	}
	defer lease.Release()
	staging, err := st.Stage(to)
	if err != nil {
		return store.Info{}, err
	}
	defer staging.Discard()
	staging.DurableFirst()
	old := lease.Manifest()
	fresh := &snapshot.Manifest{Machine: old.Machine, Guest: old.Guest, Boot: old.Boot}
	if of != nil {
		fresh.Branch = &of.Branch
		fresh.Guest.Network, fresh.Guest.Limits, fresh.Guest.Strict = of.Network, of.Limits, of.Strict
		fresh.Guest.Hooks = of.Hooks
	}
	for _, v := range old.Volumes {
		v.Files = slices.Clone(v.Files)
		fresh.Volumes = append(fresh.Volumes, v)
	}
	if err := staging.LinkVolumes(fresh.Volumes, lease.Volumes()); err != nil {
		return store.Info{}, fmt.Errorf("compact snapshot %q: %w", from, err)
	}
	var disk []*os.File
	if old.Disk != nil {
		fresh.Disk = &snapshot.Disk{SizeBytes: old.Disk.SizeBytes, Base: old.Disk.Base}
		err := stageFile(staging, snapshot.DiskLayerFile, func(f *os.File) error {
			return disklayer.Merge(ctx, f, lease.Disk()[1:])
		})
		if err != nil {
			return store.Info{}, fmt.Errorf("compact snapshot %q: %w", from, err)
		}
		layer, err := os.Open(staging.Path(snapshot.DiskLayerFile))
		if err != nil {
			return store.Info{}, fmt.Errorf("compact snapshot %q: %w", from, err)
		}
		defer layer.Close()
		disk = append(disk, layer)
	}
	err = stageFile(staging, snapshot.StateFile, func(f *os.File) error {
		_, err := io.Copy(f, io.NewSectionReader(lease.State(), 0, int64(old.State.Bytes)))
		return err
	})
	if err != nil {
		return store.Info{}, fmt.Errorf("compact snapshot %q: %w", from, err)
	}
	extents := lease.Extents()
	err = stageFile(staging, snapshot.MemoryLayerFile, func(f *os.File) error {
		if err := f.Truncate(int64(old.Memory[len(old.Memory)-1].Bytes)); err != nil {
			return err
		}
		extents, err = flatten(ctx, f, uint32(len(old.Memory)), extents, lease.Layers())
		return err
	})
	if err != nil {
		return store.Info{}, fmt.Errorf("compact snapshot %q: %w", from, err)
	}
	if err := ctx.Err(); err != nil {
		return store.Info{}, err
	}
	return staging.Publish(fresh, extents, disk)
}

// stageFile creates one file of a snapshot, and calls fill, which writes the file.
func stageFile(g *store.Staging, name string, fill func(*os.File) error) error {
	f, err := g.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return fill(f)
}
