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

// uploadPrefix begins the names of temporary files for uploads. Watches do not report these files.
const uploadPrefix = ".forkd-upload-"

// maxLinks is the maximum number of symbolic links that the kernel follows in one path.
const maxLinks = 40

// replaceFile replaces the content and the metadata of the file at path. The replacement is atomic:
// the old file stays until the new file is completely on the disk. An existing file keeps its owner
// and mode. The user u owns a new file. Symbolic links are followed. Other hard links to the file
// keep the old content.
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
		refused.Path = path // not the temporary file's path
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

// isKernels reports whether path is in a file system of the kernel, such as /proc, where each write
// takes effect at once.
func isKernels(path string) bool {
	return strings.HasPrefix(path, "/proc/") || strings.HasPrefix(path, "/sys/")
}

// followLinks returns the path of the file that changes when a program opens path and writes to it.
// It follows symbolic links at the end of path even if their target does not exist.
func followLinks(path string) (string, error) {
	for range maxLinks {
		to, err := os.Readlink(path)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist) {
			return path, nil // after EINVAL or ENOENT too, because path is not a link
		}
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(to) {
			// The path is not cleaned: if the directory is itself a link, ".." means the parent of
			// the link's target.
			to = filepath.Dir(path) + "/" + to
		}
		path = to
	}
	return "", &fs.PathError{Op: "open", Path: path, Err: unix.ELOOP}
}

// fill writes the content to f, flushes the file to the disk, and gives the file the owner and mode
// of the old file. If there is no old file, u becomes the owner.
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
	if os.Geteuid() == 0 { // only root can give a file another owner
		if err := f.Chown(uid, gid); err != nil {
			return err
		}
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	return f.Sync()
}

// putInPlace renames the temporary file to path.
func putInPlace(f *os.File, path string) error {
	err := os.Rename(f.Name(), path)
	if errors.Is(err, unix.EBUSY) {
		// The file is a mount point, such as /etc/hosts, and cannot be replaced. Overwrite it with
		// the complete content instead.
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
	// The rename alone is not a write that watchers of the file can see. Truncating the file to its
	// own size makes them see a write, and changes nothing.
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
