// Package hotlist keeps lists of hot frames: the parts of a compressed snapshot that its first
// forks need. It has a list for each snapshot of this host, and the list travels with the snapshot:
// in archives, to registries, and to other daemons.
//
// A list is only a hint (see artifact.Hot). So a damaged list is treated like a missing list.
package hotlist

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/artifact"
)

// Lists are the lists in a directory. The name of a list's file is the ID of the snapshot.
type Lists struct{ Dir string }

// Keep stores an encoded list for the snapshot with the given ID, and replaces an earlier list. It
// does not store an invalid list.
func (l Lists) Keep(id string, text []byte) error {
	if !isValid(text) {
		return nil
	}
	if err := os.MkdirAll(l.Dir, 0o700); err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(l.Dir, id), text, 0o600)
}

// Of returns the list of a snapshot, or nil.
func (l Lists) Of(id string) []byte {
	f, err := os.Open(filepath.Join(l.Dir, id))
	if err != nil {
		return nil
	}
	defer f.Close()
	return Read(f)
}

// Read returns the list in a file. If the file is nil or is not a valid list, Read returns nil.
func Read(f *os.File) []byte {
	if f == nil {
		return nil
	}
	text, err := io.ReadAll(io.NewSectionReader(f, 0, artifact.MaxHot+1))
	if err != nil || !isValid(text) {
		return nil
	}
	return text
}

func isValid(text []byte) bool {
	_, err := artifact.ParseHot(text)
	return err == nil
}

// Forget removes the list of a snapshot.
func (l Lists) Forget(id string) error {
	if err := os.Remove(filepath.Join(l.Dir, id)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Retain removes all lists except those of the given snapshots.
func (l Lists) Retain(ids []string) (err error) {
	files, err := os.ReadDir(l.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, f := range files {
		if !slices.Contains(ids, f.Name()) {
			err = errors.Join(err, os.Remove(filepath.Join(l.Dir, f.Name())))
		}
	}
	return err
}
