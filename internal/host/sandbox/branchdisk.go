package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/forkd/forkd/internal/format/disklayer"
	durable "github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// disk adds the sandbox's disk to the manifest, with the layers that the snapshot inherits. It
// returns the files of all layers; the last file is the snapshot's own layer. It merges layers to
// limit their number. If the sandbox has written too many tops since its fork, disk merges these
// tops into one layer. If the snapshot below already has the maximum number of layers, disk merges
// all layers. If ctx ends, a merge stops with an error.
func (b *branch) disk(ctx context.Context, m *snapshot.Manifest) ([]*os.File, error) {
	parent := b.lease.Manifest().Disk
	if parent == nil {
		return nil, nil
	}
	inherited := len(parent.Layers)
	if chain.MergeTops(inherited, len(b.lower)) {
		owner := b.staging.ID()
		if chain.MergeDisk(inherited) {
			// All layers will be merged into the snapshot's own layer, so the merged tops need
			// another ID.
			owner = snapshot.NewID()
		}
		if err := b.mergeTops(ctx, owner); err != nil {
			return nil, err
		}
	}
	m.Disk = &snapshot.Disk{SizeBytes: parent.SizeBytes, Base: parent.Base}
	files := append(slices.Clone(b.lease.Disk()[1:]), b.lower...)
	if chain.MergeDisk(inherited) {
		merged, err := b.create("merged")
		if err = errors.Join(err, b.staging.CheckRoom(files)); err != nil {
			return nil, err
		}
		b.undo.Add(func() { os.Remove(merged.Name()) }) // a published snapshot has the file under another name
		return []*os.File{merged}, disklayer.Merge(ctx, merged, files)
	}
	var err error
	m.Disk.Layers, err = chain.DiskLayers(parent.Layers, b.lower, b.owners)
	return files, err
}

// mergeTops replaces the frozen tops of the sandbox by one layer: in this branch, in later branches
// and in the VMM.
func (b *branch) mergeTops(ctx context.Context, owner string) error {
	name := "disk.merged." + b.staging.ID()
	path := filepath.Join(b.s.data, name)
	merged, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	b.undo.Add(func() { merged.Close() })
	err = disklayer.Merge(ctx, merged, b.lower)
	var old []durable.FrozenTop
	if err == nil {
		err = b.s.update(func(r *ledger.Record) {
			old, r.Frozen = r.Frozen, []durable.FrozenTop{{Name: name, Owner: owner}}
		})
	}
	if err != nil {
		os.Remove(path)
		return err
	}
	b.lower, b.owners = []*os.File{merged}, []string{owner}
	if err := b.mergeInVMM(path); err != nil { // after an error, the VMM uses the old files until the next merge
		b.m.cfg.Log.Warn("merge disk layers in a VMM", "sandbox", b.s.id, "error", err)
	}
	for _, f := range old {
		os.Remove(filepath.Join(b.s.data, f.Name))
	}
	return nil
}

// mergeInVMM tells the VMM to use the layer at path instead of its frozen tops.
func (b *branch) mergeInVMM(path string) error {
	f, err := os.Open(path) // read-only, because snapshots share the file
	if err != nil {
		return err
	}
	defer f.Close()
	return b.v.vmm.Merge(context.Background(), vmmproto.Merge{First: uint32(len(b.lease.Disk()) - 1)}, f)
}
