package envd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/userenv"
)

// uploadPrefix is the prefix of files being uploaded. Watches do not report them.
const uploadPrefix = ".forkd-upload-"

// maxLinks is the number of symbolic links that the kernel follows in one path.
const maxLinks = 40

// replaceFile replaces the content and the metadata of path completely or not at all: the old file
// stays until the new one is completely on the disk. An existing file keeps its owner and mode, a
// new one belongs to u. Symbolic links are followed; other hard links keep the old content.
func replaceFile(path string, content io.Reader, meta map[string]string, u *userenv.User) error {
	path, err := followLinks(path)
	if err != nil {
		return err
	}
	old, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		old = nil
	case err != nil:
		return err
	case old.IsDir():
		return failf(http.StatusBadRequest, "path %q is a directory; name a file in it", path)
	case !old.Mode().IsRegular():
		return failf(http.StatusBadRequest, "path %q is not a regular file", path)
	case isKernels(path):
		return writeInPlace(path, content)
	}
	f, err := os.CreateTemp(filepath.Dir(path), uploadPrefix+"*")
	var refused *fs.PathError
	if errors.As(err, &refused) {
		refused.Path = path // instead of the name of the upload
	}
	if err != nil {
		return err
	}
	defer f.Close()
	made := f.Name()
	if err = fill(f, content, old, u); err == nil {
		err = setMetadata(made, meta)
	}
	if err == nil {
		err = putInPlace(f, path)
	}
	if err != nil {
		os.Remove(made)
	}
	return err
}

// isKernels reports whether path is a file of the kernel, where a write takes effect at once.
func isKernels(path string) bool {
	return strings.HasPrefix(path, "/proc/") || strings.HasPrefix(path, "/sys/")
}

// followLinks returns the path that opening path for writing would use: it follows links at the end
// of path, whether or not their target exists.
func followLinks(path string) (string, error) {
	for range maxLinks {
		to, err := os.Readlink(path)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist) {
			return path, nil // not a link
		}
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(to) {
			// Not cleaned: ".." behind a link to a directory is that directory's parent.
			to = filepath.Dir(path) + "/" + to
		}
		path = to
	}
	return "", &fs.PathError{Op: "open", Path: path, Err: unix.ELOOP}
}

// fill writes the content to the disk and gives the file its owner and mode.
func fill(f *os.File, content io.Reader, old fs.FileInfo, u *userenv.User) error {
	if _, err := io.Copy(f, content); err != nil {
		return err
	}
	mode, uid, gid := fs.FileMode(0o644), int(u.UID), int(u.GID)
	if old != nil {
		mode = old.Mode()
		if st, ok := old.Sys().(*syscall.Stat_t); ok {
			uid, gid = int(st.Uid), int(st.Gid)
		}
	}
	if os.Geteuid() == 0 { // without root a file can have no other owner
		if err := f.Chown(uid, gid); err != nil {
			return err
		}
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	return f.Sync()
}

// putInPlace renames the file to path.
func putInPlace(f *os.File, path string) error {
	err := os.Rename(f.Name(), path)
	if errors.Is(err, unix.EBUSY) {
		// It is a mount point, such as /etc/hosts. Its file is overwritten, from the complete
		// content.
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if err := writeInPlace(path, f); err != nil {
			return err
		}
		return os.Remove(f.Name())
	}
	if err != nil {
		return err
	}
	// Watchers of the file must see a write, not only a rename: this changes nothing else.
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		err = f.Truncate(size)
	}
	return err
}

func writeInPlace(path string, content io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
