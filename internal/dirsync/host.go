package dirsync

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hostEntry converts the description of a file of the host.
func (s *Sync) hostEntry(rel string, info fs.FileInfo) Entry {
	e := Entry{Kind: Other, Mode: uint32(info.Mode().Perm())}
	switch info.Mode().Type() {
	case fs.ModeDir:
		e.Kind = Dir
	case 0:
		e.Kind, e.Size, e.Time = File, info.Size(), info.ModTime().UnixNano()
	case fs.ModeSymlink:
		if target, err := s.root.Readlink(rel); err == nil {
			e = Entry{Kind: Link, Size: int64(len(target)), Time: info.ModTime().UnixNano(), Link: target}
		}
	}
	return e
}

// hostNow returns the present entry of a file of the host.
func (s *Sync) hostNow(rel string) (Entry, error) {
	info, err := s.root.Lstat(rel)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return Entry{}, nil
	}
	if err != nil {
		return Entry{}, err
	}
	return s.hostEntry(rel, info), nil
}

// scanHost reads the entries of rel and of everything below it. It watches each directory before
// it reads the directory, so it misses no change.
func (s *Sync) scanHost(rel string) error {
	if now, err := os.Stat(s.Dir); err != nil || !os.SameFile(now, s.dir) {
		return &StopError{fmt.Errorf("the directory %s was removed or replaced: nothing more is synced; start again", s.Dir)}
	}
	drop(s.host, rel)
	for up := path.Dir(rel); up != "."; up = path.Dir(up) {
		e, err := s.hostNow(up)
		if err != nil {
			s.host[up] = Entry{Kind: Other} // protects everything below it
		}
		if err != nil || e.Kind != Dir {
			return nil // for example, the directory was replaced by a link, which has a hint of its own
		}
	}
	if e, err := s.hostNow(rel); rel != "." && err == nil && e.Kind == Link {
		if s.host[rel] = e; s.ignored(rel) || !goodName(rel) {
			delete(s.host, rel)
		}
		return nil // WalkDir would follow the link
	}
	return fs.WalkDir(s.root.FS(), rel, func(name string, d fs.DirEntry, err error) error {
		switch {
		case name != "." && s.ignored(name):
			return skip(d, s.ignore.Exceptions())
		case name != "." && !goodName(name):
			s.leftOut(name, "its name is not UTF-8, has control characters, or is too long")
			return skip(d, false)
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
			return nil // removed in the meantime
		case err != nil && name == ".":
			return err // an unreadable directory is not an empty one
		case err != nil:
			s.leftOut(name, err.Error())
			s.host[name] = Entry{Kind: Other} // protects everything below it
			return nil
		case d.IsDir() && s.notices != nil:
			if err := s.notices.Add(filepath.Join(s.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return &StopError{fmt.Errorf("watch %s: %w: exclude large directories (--exclude), or raise the limit "+
					"fs.inotify.max_user_watches", name, err)}
			}
		}
		if name == "." {
			return nil
		}
		e, err := s.hostNow(name)
		if err != nil {
			e = Entry{Kind: Other}
		}
		if e != (Entry{}) {
			s.host[name] = e
		}
		return tooMany(s.host, "the directory "+s.Dir)
	})
}

// skip omits an entry. It also omits the content of a directory, unless the patterns have exceptions
// that could include a part of it.
func skip(d fs.DirEntry, exceptions bool) error {
	if d != nil && d.IsDir() && !exceptions {
		return fs.SkipDir
	}
	return nil
}

// openHost opens a regular file of the host. It does not block on a pipe, and follows no link out of
// the directory.
func (s *Sync) openHost(rel string) (*os.File, Entry, error) {
	f, err := s.root.OpenFile(rel, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, Entry{}, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errMoved
	}
	if err != nil {
		f.Close()
		return nil, Entry{}, err
	}
	return f, s.hostEntry(rel, info), nil
}

// errMoved means that a file has changed since it was last listed. The next pass decides again.
var errMoved = errors.New("the file has changed in the meantime")

// still returns errMoved if a file of the host differs from its entry. All names in the path above
// the file must be directories: a path through a link could reach an excluded file, such as the
// configuration of git.
func (s *Sync) still(rel string) error {
	for up := path.Dir(rel); up != "."; up = path.Dir(up) {
		e, err := s.hostNow(up)
		if err == nil && e.Kind != Dir && e.Kind != Absent {
			err = fmt.Errorf("%q is not a directory here", up)
		}
		if err != nil {
			return err
		}
	}
	now, err := s.hostNow(rel)
	if err == nil && now != s.host[rel] {
		err = errMoved
	}
	return err
}

// removeHost removes one file, or an empty directory, of the host.
func (s *Sync) removeHost(rel string) error {
	if err := s.still(rel); err != nil {
		return err
	}
	err := s.root.Remove(rel)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, fs.ErrNotExist) {
		err = nil // new or excluded files keep the directory
	}
	return err
}

// writable are the permission bits that a file from the guest may have on the host: only its owner
// can write to it, and it has no set-user-id bit.
const writable = 0o755

// pull puts a file of the guest in place on the host. Until the file is complete, it has a
// temporary name.
func (s *Sync) pull(ctx context.Context, rel string) error {
	want := s.guest[rel]
	if err := s.still(rel); err != nil {
		return err
	}
	if up := path.Dir(rel); up != "." {
		if err := s.root.MkdirAll(up, 0o755); err != nil {
			return err
		}
	}
	old := s.host[rel].Kind
	if old != Absent && old != want.Kind {
		if _, err := s.synced(rel); err != nil {
			return err
		}
	}
	if want.Kind == Dir {
		if old != Absent && old != Dir {
			if err := s.clearHost(rel); err != nil {
				return err
			}
		}
		err := s.root.Mkdir(rel, fs.FileMode(want.Mode)&writable|0o700)
		if errors.Is(err, fs.ErrExist) {
			err = s.root.Chmod(rel, fs.FileMode(want.Mode)&writable|0o700)
		}
		return err
	}
	temp := path.Join(path.Dir(rel), tempPrefix+rand.Text())
	err := s.fetch(ctx, rel, temp, want)
	if err == nil {
		err = s.stillGuest(ctx, rel)
	}
	if err == nil {
		err = s.still(rel)
	}
	if err == nil && old == Dir {
		err = s.clearHost(rel)
	}
	if err == nil {
		err = s.root.Rename(temp, rel)
	}
	if err != nil {
		_ = s.root.Remove(temp)
	}
	return err
}

// synced returns the paths of a file of the host and of everything below it, parents before their
// content. It returns an error if a change, or a file that is not synced, would be lost when a file
// of the guest replaces rel.
func (s *Sync) synced(rel string) (names []string, err error) {
	if err := s.scanHost(rel); err != nil {
		return nil, err
	}
	if s.Prefer == "" && s.mixed(rel) {
		return nil, errMoved
	}
	if s.host[rel].Kind != Dir {
		return []string{rel}, nil // WalkDir would follow a link
	}
	err = fs.WalkDir(s.root.FS(), rel, func(name string, _ fs.DirEntry, err error) error {
		if kind := s.host[name].Kind; err == nil && (kind == Absent || kind == Other) {
			err = fmt.Errorf("the directory of this host has %q, which is not synced", name)
		}
		names = append(names, name)
		return err
	})
	return names, err
}

// clearHost removes a file or directory of the host that a file of the guest replaces.
func (s *Sync) clearHost(rel string) error {
	names, err := s.synced(rel)
	if err != nil {
		return err
	}
	for _, name := range slices.Backward(names) {
		if err := s.root.Remove(name); errors.Is(err, unix.ENOTEMPTY) {
			return errMoved // the directory has a new file
		} else if err != nil {
			return err
		}
	}
	s.forget(s.host, rel)
	return nil
}

// fetch makes a file or a link at the path temp with the content of the guest's file rel.
func (s *Sync) fetch(ctx context.Context, rel, temp string, want Entry) error {
	if want.Kind == Link {
		target, err := s.guestLink(rel)
		if err == nil && !staysInside(rel, target) {
			err = fmt.Errorf("the link to %q leads out of the directory, or may do so", target)
		}
		if err != nil {
			return err
		}
		return s.root.Symlink(target, temp)
	}
	content, err := s.cl.ReadFile(ctx, s.ID, s.remote(rel))
	if err != nil {
		return err
	}
	defer content.Close()
	f, err := s.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fs.FileMode(want.Mode)&writable|0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(content, want.Size+1)) // the bounds were checked for this size
	if err == nil && n != want.Size {
		err = errMoved
	}
	if err == nil && s.host[rel].Kind == File {
		err = f.Sync() // after a power failure the host has the former content or the new one
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return s.root.Chtimes(temp, time.Time{}, want.modified())
}

// removeTemps removes temporary files that a killed program has left. Younger files may belong to a
// running program.
func (s *Sync) removeTemps() {
	_ = fs.WalkDir(s.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasPrefix(d.Name(), tempPrefix) || d.IsDir() {
			return nil
		}
		if info, err := d.Info(); err == nil && time.Since(info.ModTime()) > time.Hour {
			_ = s.root.Remove(name)
		}
		return nil
	})
}
