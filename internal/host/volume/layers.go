package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/gate"
)

// mergesAtOnce is the maximum number of merges at the same time. The number is small, because a
// merge may copy the data of a whole volume. The volumes of one owner have at most mergesAtOnce-1
// merges at the same time.
const mergesAtOnce = 2

// Merge replaces all layers of a volume by one layer with the same content. The volume must have no
// writer. While it copies the data, the volume is not locked. The error is one of the errors of
// Write, an *admit.Error if the host has no room for the copy, or an error of the file system.
func (s *Store) Merge(ctx context.Context, name string) error {
	v, unlock, err := s.lock(ctx, name)
	if err != nil {
		return err
	}
	owner := v.Owner
	unlock()
	leave, err := s.merges.Wait(ctx, gate.Share{Key: owner, Most: mergesAtOnce - 1})
	if err != nil {
		return err
	}
	defer leave()
	m, err := s.beginMerge(ctx, name)
	if m == nil || err != nil {
		return err
	}
	defer m.close()
	if err = disklayer.Merge(ctx, m.merged, m.files); err == nil {
		err = m.merged.Sync()
	}
	if err == nil {
		s.step("merged layers")
		err = s.endMerge(ctx, m)
	}
	if err != nil {
		return fmt.Errorf("merge the layers of volume %q: %w", name, err)
	}
	return nil
}

// merge is a merge of the oldest layers of a volume.
type merge struct {
	v      *volume
	name   string   // name of the volume
	layers []string // names of the layers
	files  []*os.File
	top    string // name of the merged layer
	merged *os.File
	kept   bool // whether the record may name the merged layer
}

// close closes the files, and removes the merged layer unless it is kept.
func (m *merge) close() {
	for _, f := range m.files {
		_ = f.Close() // open for reading only
	}
	if m.merged == nil {
		return
	}
	_ = m.merged.Close() // the layer is synced, or it is removed
	if !m.kept {
		_ = os.Remove(m.merged.Name()) // the next start removes what stays
	}
}

// beginMerge opens the files of a merge. It returns nil if there is nothing to merge.
func (s *Store) beginMerge(ctx context.Context, name string) (*merge, error) {
	v, unlock, err := s.lock(ctx, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := s.releaseEnded(ctx, v); err != nil {
		return nil, err
	}
	if v.Writer != nil {
		return nil, &InUseError{Name: name, SandboxID: v.Writer.SandboxID}
	}
	if len(v.Layers) < 2 {
		return nil, nil
	}
	m := &merge{v: v, name: name, layers: slices.Clone(v.Layers)}
	if err := s.openMerge(m); err != nil {
		m.close()
		return nil, fmt.Errorf("merge the layers of volume %q: %w", name, err)
	}
	return m, nil
}

// openMerge opens the files of m. Preconditions: the volume is locked.
func (s *Store) openMerge(m *merge) (err error) {
	bytes := uint64(0)
	for _, layer := range m.layers {
		f, err := os.Open(filepath.Join(m.v.dir, layer))
		if err != nil {
			return err
		}
		m.files = append(m.files, f)
		info, err := f.Stat()
		if err != nil {
			return err
		}
		bytes += onDisk(info)
	}
	if err := s.checkRoom(m.v.dir, bytes); err != nil {
		return err
	}
	m.merged, m.top, err = s.newTop(m.v)
	return err
}

// endMerge replaces the merged layers in the record, and removes them. The volume may have a new writer
// by now, whose VM keeps the old files open.
func (s *Store) endMerge(ctx context.Context, m *merge) error {
	v, unlock, err := s.lock(ctx, m.name)
	if err != nil {
		return err
	}
	defer unlock()
	n := len(m.layers)
	if v != m.v || len(v.Layers) < n || !slices.Equal(v.Layers[:n], m.layers) {
		return errors.New("the volume has changed: try again")
	}
	m.kept = true // drop removes the merged layer if the record does not name it
	err = s.save(v, func(r *record.Volume) { r.Layers = append([]string{m.top}, r.Layers[n:]...) })
	s.drop(v, append(m.layers, m.top)...)
	s.step("removed layers")
	return err
}

// maxBranched is the number of layers at which MergeBelow merges. Each layer costs the VMM a descriptor,
// a bitmap and a lookup.
const maxBranched = 16

// MergeBelow merges all layers of a disk into one, if branches have left too many of them. The VM
// writes to the top during the merge. MergeBelow calls inVMM, which tells the VMM to use the merged
// layer instead of the old layers. If inVMM fails, the VMM keeps the old files, whose content is
// the same.
func (s *Store) MergeBelow(ctx context.Context, d Disk, inVMM func(merged *os.File) error) error {
	v, unlock, err := s.hold(ctx, d)
	if err != nil {
		return err
	}
	many := len(v.Layers) >= maxBranched
	unlock()
	if !many {
		return nil
	}
	leave, err := s.merges.Wait(ctx, gate.Share{Key: d.Owner, Most: mergesAtOnce - 1})
	if err != nil {
		return err
	}
	defer leave()
	if v, unlock, err = s.hold(ctx, d); err != nil {
		return err
	}
	defer unlock()
	if err := s.mergeBelow(ctx, v, inVMM); err != nil {
		return fmt.Errorf("merge the layers of volume %q: %w", d.Name, err)
	}
	return nil
}

// mergeBelow does the work of MergeBelow. Preconditions: the volume is locked.
func (s *Store) mergeBelow(ctx context.Context, v *volume, inVMM func(merged *os.File) error) error {
	m := &merge{v: v, name: v.Name, layers: slices.Clone(v.Layers)}
	defer m.close()
	err := s.openMerge(m)
	if err == nil {
		err = disklayer.Merge(ctx, m.merged, m.files)
	}
	if err == nil && !v.private {
		err = m.merged.Sync()
	}
	if err != nil {
		return err
	}
	m.kept = true // drop removes the merged layer if the record does not name it
	err = s.save(v, func(r *record.Volume) { r.Layers = []string{m.top} })
	s.drop(v, append(m.layers, m.top)...)
	if err != nil {
		return err
	}
	merged, err := os.Open(m.merged.Name()) // read-only, because snapshots share the file
	if err != nil {
		return err
	}
	defer merged.Close()
	return inVMM(merged)
}
