// Package hardlink makes links to the layers that snapshots, suspended states and volumes share. A
// file system limits the number of links to a file: ext4 permits 65,000 links, XFS and tmpfs about
// 4,000 million.
package hardlink

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/fileid"
)

// Link is like os.Link. If the file has as many links as its file system permits, the error
// suggests a remedy.
func Link(from, to string) error { return explain(os.Link(from, to)) }

// File makes a link to an open file, at the given path. If the file already has this path, File
// does nothing. The file may have been renamed since it was opened, but must still have a name.
func File(f *os.File, to string) error {
	if id, err := fileid.Of(f); err == nil && id == fileid.OfPath(to) {
		return nil
	}
	from := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW); err != nil {
		return explain(fmt.Errorf("link %s to %s: %w", f.Name(), to, err))
	}
	return nil
}

func explain(err error) error {
	if errors.Is(err, unix.EMLINK) {
		return fmt.Errorf("too many snapshots, suspended sandboxes and volumes share a layer (ext4 permits 65,000 links "+
			"to a file): delete some of them, or bake the parent again under another tag: %w", err)
	}
	return err
}
