package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// Fork is a fork whose children have not been handed out. While its file exists, a starting daemon
// kills every child whose record names the fork. Removing the file hands out all of them at once.
type Fork struct {
	ID   string // empty: writing the record of its only child hands it out
	path string
}

// ForkPrefix is the prefix of these files in the run directory.
const ForkPrefix = "fork-"

// BeginFork records that a fork of n children has begun.
func BeginFork(runDir string, n int) (Fork, error) {
	if n == 1 {
		return Fork{}, nil
	}
	f := Fork{ID: snapshot.NewID()}
	f.path = filepath.Join(runDir, ForkPrefix+f.ID)
	if err := os.WriteFile(f.path, nil, 0o600); err != nil {
		return f, fmt.Errorf("note a fork: %w", err)
	}
	return f, nil
}

// Finish hands out the children.
func (f Fork) Finish() error {
	if f.ID == "" {
		return nil
	}
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("hand out the children of a fork: %w", err)
	}
	return nil
}

// IsUnfinished reports whether the children of a fork, given by its name in their records, were not
// handed out.
func IsUnfinished(runDir, fork string) (bool, error) {
	if fork == "" {
		return false, nil
	}
	_, err := os.Lstat(filepath.Join(runDir, ForkPrefix+fork))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
