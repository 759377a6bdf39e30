package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/writers"
)

// Remove removes a volume and its data. The error is an *Error if there is no such volume, or an
// *InUseError if the volume has a writer. After any other error, the volume still exists, or may
// come back after a power failure. When Remove returns nil, the volume does not come back. A writer
// that has ended does not hinder Remove, even if the disk is full and the volume cannot be
// released.
func (s *Store) Remove(ctx context.Context, name string) error { return s.remove(ctx, name, "") }

// RemoveID is like Remove, but removes only the volume with the given id. If another volume has the name,
// the error is an *Error with the id as the name.
func (s *Store) RemoveID(ctx context.Context, name, id string) error { return s.remove(ctx, name, id) }

// remove removes the volume with the given name. If id is not empty, the volume must have this id.
func (s *Store) remove(ctx context.Context, name, id string) error {
	v, unlock, err := s.lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	if id != "" && v.ID != id {
		return &Error{Name: id}
	}
	if w := v.Writer; w != nil && (!v.ended || s.isOpen(v)) {
		return &InUseError{Name: name, SandboxID: w.SandboxID, Ended: v.ended}
	}
	s.mu.Lock()
	v.phase = removing
	s.mu.Unlock()
	gone, err := s.bury(v)
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.phase = ready; gone {
		delete(s.byName, name)
	}
	if err != nil {
		return fmt.Errorf("remove volume %q: %w", name, err)
	}
	return nil
}

// isOpen reports whether a process has a top of the volume open for writing. In that case, removing
// the top could block; see package writers. Preconditions: the volume is locked, and has a writer.
func (s *Store) isOpen(v *volume) bool {
	for _, top := range v.Tops() {
		if errors.As(writers.None(filepath.Join(v.dir, top), s.patience), new(*writers.Error)) {
			return true
		}
	}
	return false
}

// bury renames a volume's directory, so that the name is free, and then removes the directory. If a
// file cannot be removed, the next start removes it. The result gone reports whether the name is free.
// If it is free and bury returns an error, the volume may come back after a power failure.
func (s *Store) bury(v *volume) (gone bool, err error) {
	grave := filepath.Join(s.cfg.Dir, gonePrefix+snapshot.NewID())
	if err := os.Rename(v.dir, grave); err != nil {
		return false, err
	}
	s.step("renamed the directory")
	if err = atomicfile.SyncDir(s.cfg.Dir); err != nil {
		if back := os.Rename(grave, v.dir); back == nil {
			return false, err
		}
	}
	if err := os.RemoveAll(grave); err != nil {
		s.cfg.Log.Warn("files of a removed volume are left", "name", v.Name, "error", err)
	}
	s.step("removed the files")
	return true, err
}
