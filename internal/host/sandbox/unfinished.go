package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// unfinishedFork is a fork whose children have not been handed out. While its file exists, a daemon
// that starts ends every child whose record names the fork; to remove the file is to hand out all
// of them at once.
type unfinishedFork struct {
	id   string // empty: its only child is handed out by writing its record
	path string
}

// unfinishedPrefix begins the names of these files in the run directory.
const unfinishedPrefix = "fork-"

// beginFork notes that a fork of n children is under way.
func beginFork(runDir string, n int) (unfinishedFork, error) {
	if n == 1 {
		return unfinishedFork{}, nil
	}
	f := unfinishedFork{id: snapshot.NewID()}
	f.path = filepath.Join(runDir, unfinishedPrefix+f.id)
	if err := os.WriteFile(f.path, nil, 0o600); err != nil {
		return f, fmt.Errorf("note a fork: %w", err)
	}
	return f, nil
}

// finish hands out the children.
func (f unfinishedFork) finish() error {
	if f.id == "" {
		return nil
	}
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("hand out the children of a fork: %w", err)
	}
	return nil
}

// isUnfinished reports whether the children of a fork, as their records name it, were not handed
// out.
func isUnfinished(runDir, fork string) (bool, error) {
	if fork == "" {
		return false, nil
	}
	_, err := os.Lstat(filepath.Join(runDir, unfinishedPrefix+fork))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
