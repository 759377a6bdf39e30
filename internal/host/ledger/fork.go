package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/snapshot"
)

// Fork is a fork whose children no client may use yet. While the file of the fork exists, a
// starting daemon kills every child whose record names the fork. Removing the file hands out all
// children in one step: from then on clients may use them.
type Fork struct {
	ID      string // empty: the only child is handed out when its record is written
	path    string
	durable bool // the file is written and removed durably, so that a reboot does not undo either
}

// ForkPrefix is the prefix of the names of forks' files. The file of a provisional fork is in the
// parent of all data directories, because a child can be suspended before it is handed out, and its
// suspended state survives a reboot. The files of other forks are in the run directory, like the
// records of their children.
const ForkPrefix = "fork-"

// BeginFork records that a fork with n children has begun. The parameter dataDir is the parent of
// all data directories. A fork that has only one child, and is not provisional, needs no file: it
// hands out the child as soon as the child has its record.
func BeginFork(runDir, dataDir string, n int, provisional bool) (f Fork, err error) {
	if n == 1 && !provisional {
		return Fork{}, nil
	}
	f = Fork{ID: snapshot.NewID(), durable: provisional}
	if provisional {
		f.path = filepath.Join(dataDir, ForkPrefix+f.ID)
		err = atomicfile.WriteDurable(f.path, nil, 0o600)
	} else {
		f.path = filepath.Join(runDir, ForkPrefix+f.ID)
		err = os.WriteFile(f.path, nil, 0o600)
	}
	if err != nil {
		return f, fmt.Errorf("note a fork: %w", err)
	}
	return f, nil
}

// Finish hands out the children.
func (f Fork) Finish() error {
	if f.ID == "" {
		return nil
	}
	err := os.Remove(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil && f.durable {
		err = atomicfile.SyncDir(filepath.Dir(f.path))
	}
	if err != nil {
		return fmt.Errorf("hand out the children of a fork: %w", err)
	}
	return nil
}

// ClearForks removes the files of all forks. The caller must first have killed all children that
// were not handed out.
func ClearForks(runDir, dataDir string) {
	for _, dir := range []string{runDir, dataDir} {
		entries, _ := os.ReadDir(dir) // a file that is left names a fork without children
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ForkPrefix) {
				os.Remove(filepath.Join(dir, e.Name()))
			}
		}
	}
}

// FindSuspended returns the suspended state in a data directory, if clients may use it. If there is
// none, or if the sandbox's fork was not finished, the error is os.ErrNotExist. Any other error means
// that the state cannot be read.
func FindSuspended(runDir, data string) (Record, error) {
	r, err := ReadSuspended(data)
	if errors.Is(err, fs.ErrNotExist) {
		return r, err
	}
	if err != nil {
		return r, fmt.Errorf("read suspended sandbox: %w", err)
	}
	unfinished, err := IsUnfinished(runDir, filepath.Dir(data), r.Fork)
	if unfinished {
		err = fs.ErrNotExist
	}
	return r, err
}

// IsUnfinished reports whether the children of a fork were not handed out. The fork is given by its
// ID, as in the records of the children.
func IsUnfinished(runDir, dataDir, fork string) (bool, error) {
	if fork == "" {
		return false, nil
	}
	for _, dir := range []string{runDir, dataDir} {
		if _, err := os.Lstat(filepath.Join(dir, ForkPrefix+fork)); !errors.Is(err, fs.ErrNotExist) {
			return err == nil, err
		}
	}
	return false, nil
}
