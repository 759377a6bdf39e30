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
)

// Merge replaces the layers of a volume without a writer by one layer with the same content.
func (s *Store) Merge(ctx context.Context, name string) error {
	v, unlock, err := s.lock(name)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.releaseEnded(ctx, v); err != nil {
		return err
	}
	if v.Writer != nil {
		return &InUseError{Name: name, SandboxID: v.Writer.SandboxID}
	}
	if len(v.Layers) < 2 {
		return nil
	}
	if err := s.merge(ctx, v); err != nil {
		return fmt.Errorf("merge the layers of volume %q: %w", name, err)
	}
	return nil
}

func (s *Store) merge(ctx context.Context, v *volume) (err error) {
	dir, old := s.path(v.Name), slices.Clone(v.Layers)
	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close() // open for reading only
		}
	}()
	for _, layer := range old {
		f, err := os.Open(filepath.Join(dir, layer))
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	merged, name, err := s.newTop(v)
	if err != nil {
		return err
	}
	if err = disklayer.Merge(ctx, merged, files); err == nil {
		err = merged.Sync()
	}
	if err = errors.Join(err, merged.Close()); err == nil {
		s.step("merged layers")
		err = s.save(v, func(r *record.Volume) { r.Layers = []string{name} })
	}
	s.drop(v, append(old, name)...)
	s.step("removed layers")
	return err
}

// Copy makes hard links to the immutable files of a volume: the base image and the layers, oldest
// first. The links are in the directory dir of the same file system, and their names are the prefix
// with a number. Copy returns the paths of the links, and the size of the volume. The links stay
// when the volume changes or is removed. They lack the data that a writer has written since its
// latest branch.
func (s *Store) Copy(name, dir, prefix string) (paths []string, size uint64, err error) {
	v, unlock, err := s.lock(name)
	if err != nil {
		return nil, 0, err
	}
	defer unlock()
	if err := s.releaseEnded(context.Background(), v); err != nil {
		return nil, 0, err
	}
	for i, f := range append([]string{baseFile}, v.Layers...) {
		path := filepath.Join(dir, fmt.Sprintf("%s.%d", prefix, i))
		if err := os.Link(filepath.Join(s.path(name), f), path); err != nil {
			for _, p := range paths {
				_ = os.Remove(p) // report the first error
			}
			return nil, 0, fmt.Errorf("copy volume %q: %w", name, err)
		}
		paths = append(paths, path)
	}
	return paths, v.SizeBytes, nil
}
