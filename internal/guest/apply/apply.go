// Package apply changes files of a running guest as a transaction: either all changes of an archive take place, or
// none.
//
// The archive comes from a merge (see package diffproto). Apply takes these steps:
//
//  1. Unpack the archive into a directory of its own at the root of the file system. If the archive is cut off, or
//     the disk is full, nothing else has changed, and the directory is removed.
//  2. For each file that will be replaced, compare its present state with the state in the archive. If a program
//     has written the file since the merge compared it, nothing is changed.
//  3. Put each new file in the place of the old one, by a rename that exchanges both. So each path has its old
//     file or its new one at all times, and the old file stays in the directory of step 1.
//  4. Compare again: the old file and, if a directory was removed or replaced, each file below it.
//     If the state of a file is no longer the state in the archive, or if any other error occurs,
//     exchange the files back. A new file that a program has written since step 3 stays in its
//     place.
//  5. Remove the directory.
//
// Nothing waits for the client from step 2 on, so a client that leaves cannot interrupt these
// steps. No symbolic link is followed, and no path leaves the file system, so other mounted file
// systems are never changed. Programs that have opened a replaced file keep the old file.
//
// The package does not decide what to change, and does not merge the content of files.
package apply

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/diffproto"
)

// Tree is the file system that is changed.
type Tree struct {
	Dir string // root of the file system
	// Hold prevents disk-only branches from saving the file system until the returned function is
	// called. Hold may be nil.
	Hold func() (release func(), err error)

	mu sync.Mutex // held by Apply
}

// ErrBusy means that the tree is being changed already.
var ErrBusy = errors.New("other changes are being applied to this sandbox: try again")

// ChangedError means that files have changed since the merge compared them. Nothing was applied.
type ChangedError struct{ Paths []string }

func (e *ChangedError) Error() string {
	return fmt.Sprintf("%.300q have changed since the sides were compared: try again", e.Paths)
}

// maxChanged bounds the paths in a ChangedError.
const maxChanged = 20

// IncompleteError means that an error has interrupted the changes, and that some of them could not be undone.
type IncompleteError struct {
	Cause error
	Paths []string // absolute; the files that have changed
	Dir   string   // path of the directory that has the old files
}

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("%v; the changes of %.300q could not be undone, and their old files are in %s", e.Cause, e.Paths,
		e.Dir)
}

func (e *IncompleteError) Unwrap() error { return e.Cause }

// Apply applies the changes of an archive and returns their number.
func (t *Tree) Apply(archive io.Reader) (n int, err error) {
	if !t.mu.TryLock() {
		return 0, ErrBusy
	}
	defer t.mu.Unlock()
	root, err := unix.Open(t.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(root)
	s, err := newStage(root)
	if err != nil {
		return 0, err
	}
	if err = s.unpack(archive); err == nil {
		err = t.commit(s)
	}
	unix.Close(s.dir)
	if incomplete := (*IncompleteError)(nil); !errors.As(err, &incomplete) {
		// An error leaves only useless files: the changes have taken place, or are undone.
		_ = os.RemoveAll(filepath.Join(t.Dir, s.name))
	}
	if err != nil {
		return 0, err
	}
	return len(s.steps), nil
}

// commit makes the changes of a stage.
func (t *Tree) commit(s *stage) error {
	release := func() {}
	if t.Hold != nil {
		var err error
		if release, err = t.Hold(); err != nil {
			return err
		}
	}
	defer release()
	if err := s.verify(); err != nil {
		return err
	}
	return s.commit()
}

// stateOf returns the state of a file. The state is zero if there is no such file.
func stateOf(dir int, name string) (diffproto.State, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return diffproto.State{}, nil
	}
	if err != nil {
		return diffproto.State{}, err
	}
	return diffproto.State{Inode: st.Ino, Mode: st.Mode, UID: st.Uid, GID: st.Gid, Size: st.Size,
		MTime: st.Mtim.Nano(), CTime: st.Ctim.Nano()}, nil
}
