// Package private opens files and directories that other users must not change. It is used for the
// directories that a daemon has at well-known paths, for files in them whose names or creators are
// not trusted, and for files with settings of an administrator.
//
// It checks owner, permissions and kind of a file. The callers check the content.
package private

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// sharedBits are the permission bits that give access to other users.
const sharedBits = 0o077

// overflowID is the number that a user namespace shows for users and groups without a mapping, such
// as root of the host.
const overflowID = 65534

// Dir opens the directory at path, and creates it and its parents if they are missing. The
// directory must belong to the calling user and give no access to other users. It must be
// impossible for other users to replace the directory. The path is well known, so without these
// checks another user could create the directory first, and later replace the files in it. The
// parameter option is the command-line option that sets path. Errors name this option.
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
	case errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP): // a link, or a file that is not a directory
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
		err = checkAbove(path) // another user may have created a directory above path in the meantime
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// checkAbove returns an error if another user could replace the directory at path. Such a user owns
// a directory above path, or has write access to a directory above path that is not sticky. A
// missing directory is accepted, because this process will create it.
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

// trusted checks a directory above a private directory, or a symbolic link to such a directory.
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
	// Write access for a group is accepted if the group is the user's own: distributions create a
	// group for each user, and make the user's files writable for this group.
	if st.Mode&0o020 != 0 && st.Gid != 0 && st.Gid != overflowID && int(st.Gid) != os.Getgid() {
		return fmt.Errorf("%s above it is writable for group %d, whose members could replace it", path, st.Gid)
	}
	return nil
}

// ErrNotRegular is the error for files that are not regular, such as a FIFO, a device or a
// directory.
var ErrNotRegular = errors.New("not a regular file")

// Open opens a regular file for reading, by a path relative to dir. No part of this path may be a
// symbolic link or lead out of dir. Open does not block, even if name is a FIFO.
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

// openat2 repeats the system call openat2 while it fails with EINTR or EAGAIN, up to 100 times.
// EAGAIN means that a directory was renamed while the kernel checked a "..".
func openat2(at int, name string, how *unix.OpenHow) (fd int, err error) {
	for range 100 {
		fd, err = unix.Openat2(at, name, how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return fd, err
}

// OpenPath opens a regular file whose absolute path was chosen by a user. Directories of the path
// may be symbolic links, but the file itself must not be a symbolic link.
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

// setBlocking ends the non-blocking mode in which f was opened. This mode has no effect on a
// regular file itself, but a program that receives the descriptor would try to poll the file.
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

// ReadFile reads a regular file with settings of an administrator, and returns its description too.
// It refuses a file that belongs neither to root nor to the calling user, a file that has one of
// the forbidden permissions, and a file with more than the given number of bytes. Errors begin with
// the path, or are errors of package os.
func ReadFile(path string, forbidden fs.FileMode, most int64) ([]byte, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO must not block
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !fi.Mode().IsRegular():
		return nil, nil, fmt.Errorf("%s is not a regular file", path)
	case !ok || st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return nil, nil, fmt.Errorf("%s belongs to another user, who can change it: chown %d %s", path, os.Geteuid(), path)
	case fi.Mode().Perm()&forbidden != 0:
		return nil, nil, fmt.Errorf("%s has mode %#o, which lets other users in: chmod 600 %s", path, fi.Mode().Perm(), path)
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return text, fi, err
}
