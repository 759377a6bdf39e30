// Package private opens what must belong to the calling user alone: the directories that a daemon
// keeps at well-known places, and files below them whose names or whose makers are not trusted.
//
// It decides by owner, mode and kind of file. What is in a file, and whether it is what somebody
// says it is, its callers check.
package private

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// sharedBits are the mode bits that let others than the owner in.
const sharedBits = 0o077

// overflowID is the owner and the group that a user namespace shows for those which it does not
// map, root of the host among them.
const overflowID = 65534

// Dir opens the directory path, which it makes with its parents if it is missing. It must be the
// calling user's and let nobody else in, and nobody else may be able to replace it: whoever makes a
// directory at a well-known place first, or can write to it, could swap the files of others. option
// is how the user sets path; errors name it.
func Dir(path, option string) (*os.File, error) {
	path = filepath.Clean(path)
	refuse := func(reason string, args ...any) error {
		return fmt.Errorf("%s %s: %s", option, path, fmt.Sprintf(reason, args...))
	}
	if err := checkAbove(path); err != nil {
		return nil, refuse("%v; give another %s", err, option)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, refuse("%v", err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP): // a link is no directory either
		return nil, refuse("it is a symbolic link or not a directory; remove it, or give another %s", option)
	case err != nil:
		return nil, refuse("%v", err)
	}
	dir := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		switch uid := os.Getuid(); {
		case int(st.Uid) != uid:
			err = refuse("it belongs to user %d, not to %d; remove it, or give another %s", st.Uid, uid, option)
		case st.Mode&sharedBits != 0:
			err = refuse("its mode %#o lets other users in; if nobody has changed what is in it: chmod 700 %s", st.Mode&0o7777,
				path)
		}
	}
	if err == nil {
		err = checkAbove(path) // those that were made are ours; those that appeared meanwhile may not be
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// checkAbove reports who else could put another directory at path: the owner of one above it, or
// anybody where one is writable for all and keeps no names (sticky). What does not exist yet will
// be ours.
func checkAbove(path string) error {
	for p := filepath.Dir(path); ; p = filepath.Dir(p) {
		st, err := os.Lstat(p)
		if err == nil {
			err = trusted(p, st)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && st.Mode()&fs.ModeSymlink != 0 {
			target, err := filepath.EvalSymlinks(p)
			if err != nil {
				return err
			}
			if err := checkAbove(filepath.Join(target, "_")); err != nil {
				return err
			}
		}
		if p == filepath.Dir(p) {
			return nil
		}
	}
}

// trusted checks one directory, or a link to one, on the way to a private one.
func trusted(path string, info os.FileInfo) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err
	}
	if st.Uid != 0 && st.Uid != overflowID && int(st.Uid) != os.Getuid() {
		return fmt.Errorf("%s above it belongs to user %d, who could replace it", path, st.Uid)
	}
	if !info.IsDir() || st.Mode&unix.S_ISVTX != 0 {
		return nil
	}
	if st.Mode&0o002 != 0 {
		return fmt.Errorf("%s above it is writable for all users, who could replace it", path)
	}
	// Distributions give users a group of their own, and then make what is theirs writable for it.
	if st.Mode&0o020 != 0 && st.Gid != 0 && st.Gid != overflowID && int(st.Gid) != os.Getgid() {
		return fmt.Errorf("%s above it is writable for group %d, whose members could replace it", path, st.Gid)
	}
	return nil
}

// ErrNotRegular is returned for what is no regular file: a FIFO, a device, a directory.
var ErrNotRegular = errors.New("not a regular file")

// Open opens the regular file name, a path relative to dir, for reading. No part of name may be a
// symbolic link or lead out of dir. It never waits: a FIFO without a writer is refused like all
// that is no regular file.
func Open(dir *os.File, name string) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC | unix.O_NOCTTY,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	}
	full := filepath.Join(dir.Name(), name)
	var fd int
	raw, err := dir.SyscallConn()
	if err != nil {
		return nil, err
	}
	if ctl := raw.Control(func(at uintptr) { fd, err = openat2(int(at), name, &how) }); ctl != nil {
		return nil, ctl
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: full, Err: err}
	}
	return regular(os.NewFile(uintptr(fd), full))
}

// openat2 tries again where the kernel asks for it: a rename somewhere above may have raced with
// the look for "..".
func openat2(at int, name string, how *unix.OpenHow) (fd int, err error) {
	for range 100 {
		fd, err = unix.Openat2(at, name, how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return fd, err
}

// OpenPath opens the regular file at an absolute path that a user has named. Links on the way are
// the user's business; the file itself must not be one.
func OpenPath(path string) (*os.File, error) {
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("open %s: not an absolute path", path)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return regular(f)
}

func regular(f *os.File) (*os.File, error) {
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", f.Name(), ErrNotRegular)
	}
	if err == nil {
		err = setBlocking(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// setBlocking ends the mode in which f was opened. It means nothing for a regular file, but a
// program that the descriptor is donated to would try to poll it.
func setBlocking(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if ctl := raw.Control(func(fd uintptr) { err = unix.SetNonblock(int(fd), false) }); ctl != nil {
		return ctl
	}
	return err
}
