package sandbox

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"github.com/forkd/forkd/internal/snapshot"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// maxTops bounds the frozen tops of a sandbox. Each of them is a descriptor and a bitmap in its VMM, and another place to
// look for a cluster.
const maxTops = 16

// disk adds the disk and its inherited layers to the manifest and returns the files of all layers, the snapshot's own
// last. Snapshots stay shallow: where the tops that the sandbox has written since its fork do not fit any more they are
// merged into one, and where the snapshot below it is as deep as can be, all layers are.
func (b *branch) disk(m *snapshot.Manifest) ([]*os.File, error) {
	parent := b.lease.Manifest().Disk
	if parent == nil {
		return nil, nil
	}
	m.Disk = &snapshot.Disk{SizeBytes: parent.SizeBytes, Base: parent.Base}
	deep := len(parent.Layers) >= maxDepth
	if n := len(b.lower); n > maxTops || n > 1 && !deep && len(parent.Layers)+n > maxDepth {
		owner := b.staging.ID()
		if deep {
			owner = snapshot.NewID() // the snapshot's own layer will be another one
		}
		if err := b.mergeTops(owner); err != nil {
			return nil, err
		}
	}
	files := append(slices.Clone(b.lease.Disk()[1:]), b.lower...)
	if deep {
		merged, err := b.merge("merged", files)
		if err != nil {
			return nil, err
		}
		return []*os.File{merged}, nil
	}
	m.Disk.Layers = slices.Clone(parent.Layers)
	for i, f := range b.lower[:len(b.lower)-1] { // the last is the snapshot's own
		st, err := f.Stat()
		if err != nil {
			return nil, err
		}
		m.Disk.Layers = append(m.Disk.Layers, snapshot.File{Owner: b.owners[i], Bytes: uint64(st.Size())})
	}
	return files, nil
}

// merge makes one layer of many, in a file that goes with the branch unless it is linked.
func (b *branch) merge(name string, layers []*os.File) (*os.File, error) {
	merged, err := b.create(name)
	if err != nil {
		return nil, err
	}
	b.undo.Add(func() { os.Remove(merged.Name()) })
	return merged, b.m.cfg.Merge(merged, layers)
}

// mergeTops puts one layer in the place of the sandbox's frozen tops: for this branch, for later ones and in the VMM.
func (b *branch) mergeTops(owner string) error {
	merged, err := b.merge("tops", b.lower)
	if err != nil {
		return err
	}
	name := "disk.merged." + b.staging.ID()
	path := filepath.Join(b.s.data, name)
	if err := os.Link(merged.Name(), path); err != nil {
		return err
	}
	var old []frozenTop
	err = b.s.update(func(r *record) {
		old, r.Frozen = r.Frozen, []frozenTop{{name, owner}}
	})
	if err != nil {
		os.Remove(path)
		return err
	}
	b.lower, b.owners = []*os.File{merged}, []string{owner}
	if err := b.mergeInVMM(path); err != nil { // it goes on with what it has open, until the next time
		b.m.cfg.Log.Warn("merge disk layers in a VMM", "sandbox", b.s.record.ID, "error", err)
	}
	for _, f := range old {
		os.Remove(filepath.Join(b.s.data, f.Name))
	}
	return nil
}

// mergeInVMM gives the VMM the layer at path for the tops it has frozen.
func (b *branch) mergeInVMM(path string) error {
	f, err := os.Open(path) // for reading only: snapshots share it
	if err != nil {
		return err
	}
	defer f.Close()
	return b.s.vmm.Merge(context.Background(), vmmproto.Merge{First: uint32(len(b.lease.Disk()) - 1)}, f)
}
