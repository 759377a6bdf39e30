package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// Fork is a fork whose children are not handed out to a client yet. While the file of the fork
// exists, a starting daemon kills every child whose record names the fork. Removing the file hands
// out all children at once.
type Fork struct {
	ID   string // empty: writing the record of the only child hands it out
	path string
}

// ForkPrefix is the prefix of the names of forks' files in the run directory.
const ForkPrefix = "fork-"

// BeginFork records that a fork has begun. single means that the fork has only one child, which is
// handed out as soon as it has its record.
func BeginFork(runDir string, single bool) (Fork, error) {
	if single {
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

// FindSuspended returns nil if a data directory has a suspended state that clients may use. If it has
// none, or if the sandbox's fork was not finished, the error is os.ErrNotExist. Any other error means
// that the state cannot be read.
func FindSuspended(runDir, data string) error {
	r, err := ReadSuspended(data)
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil {
		return fmt.Errorf("read suspended sandbox: %w", err)
	}
	unfinished, err := IsUnfinished(runDir, r.Fork)
	if unfinished {
		err = fs.ErrNotExist
	}
	return err
}

// IsUnfinished reports whether the children of a fork were not handed out. fork is the ID in their
// records.
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
