package apply

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/diffproto"
)

// openAbove opens the directory above a path in root. It follows no symbolic link, and does not leave the file
// system.
func openAbove(root int, p string) (dir int, name string, err error) {
	above, name := path.Split(p)
	if above == "" {
		above = "."
	}
	dir, err = unix.Openat2(root, above, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV})
	return dir, name, err
}

// parent opens the directory of a step's path.
func (s *stage) parent(c *step) (dir int, name string, err error) {
	dir, name, err = openAbove(s.root, c.path)
	if errors.Is(err, unix.EXDEV) {
		err = fmt.Errorf("/%s is in a mount, which is not applied to: leave it out with paths: %w", c.path, err)
	}
	return dir, name, err
}

// now(c) returns the state of the file at a step's path.
func (s *stage) now(c *step) (diffproto.State, error) {
	dir, name, err := s.parent(c)
	return stateIn(dir, name, err)
}

// stateIn returns the state of a file in the directory dir, and closes dir. The parameter err is
// the error of opening dir. If err says that there is no such directory, the state is zero, as for
// a missing file.
func stateIn(dir int, name string, err error) (diffproto.State, error) {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return diffproto.State{}, nil // not an error, because an earlier step may make the missing directory
	}
	if err != nil {
		return diffproto.State{}, err
	}
	defer unix.Close(dir)
	return stateOf(dir, name)
}

// isSame reports whether a file is unchanged since the merge compared it. The size and the times of
// a directory that stays may differ, because its entries change.
func (c *step) isSame(now diffproto.State) bool {
	want := c.onto
	if c.kind == stays {
		want.Size, want.MTime, want.CTime = now.Size, now.MTime, now.CTime
	}
	return now == want
}

// verify returns a *ChangedError if files have changed since the merge compared them.
func (s *stage) verify() error {
	var changed []string
	for _, c := range s.steps {
		now, err := s.now(c)
		if err != nil {
			return err
		}
		if !c.isSame(now) && len(changed) < maxChanged {
			changed = append(changed, "/"+c.path)
		}
	}
	if len(changed) > 0 {
		return &ChangedError{changed}
	}
	return nil
}

// commit makes the changes. After an error it undoes them.
func (s *stage) commit() error {
	var gone *step // the latest step that removes or replaces a directory, with everything below it
	for i, c := range s.steps {
		if rest, ok := gone.above(c); ok {
			if err := s.checkGone(gone, c, rest); err != nil {
				return s.undo(i, err)
			}
			continue
		}
		if c.onto.Mode&unix.S_IFMT == unix.S_IFDIR && c.kind != stays {
			gone = c
		}
		if err := s.do(c); err != nil {
			return s.undo(i+1, err)
		}
	}
	return nil
}

// above reports whether the path of the other step is below the path of this step. If so, the first
// result is the other path, relative to the path of this step. No path is below a nil step.
func (c *step) above(below *step) (rest string, ok bool) {
	if c == nil {
		return "", false
	}
	return strings.CutPrefix(below.path, c.path+"/")
}

// checkGone checks a file below a directory that commit has removed or replaced. The step c must
// remove this file too, and the file must be unchanged since the merge compared it. The check of
// the directory itself does not detect a write to a file below it.
func (s *stage) checkGone(gone, c *step, rest string) error {
	if c.kind != removes {
		return fmt.Errorf("/%s is below /%s, which is removed", c.path, gone.path)
	}
	dir, name, err := openAbove(s.dir, gone.name+"/"+rest)
	now, err := stateIn(dir, name, err)
	if err != nil {
		return err
	}
	if now.CTime = c.onto.CTime; now != c.onto { // the rename of another hard link changes this time
		return &ChangedError{[]string{"/" + c.path}}
	}
	return nil
}

// undo undoes the first n steps, and returns the cause or an *IncompleteError.
func (s *stage) undo(n int, cause error) error {
	var left []string
	for _, c := range slices.Backward(s.steps[:n]) {
		if !c.done {
			continue
		}
		if err := s.revert(c); err != nil {
			left = append(left, "/"+c.path)
		}
	}
	if left == nil {
		return cause
	}
	return &IncompleteError{Cause: cause, Paths: left[:min(len(left), maxChanged)], Dir: "/" + s.name}
}

// do makes a change, and then checks that the old file was unchanged since the merge compared it.
func (s *stage) do(c *step) error {
	dir, name, err := s.parent(c)
	if err != nil {
		return fmt.Errorf("open the directory of /%s: %w", c.path, err)
	}
	defer unix.Close(dir)
	if c.kind == places {
		if c.made, err = stateOf(s.dir, c.name); err != nil {
			return err
		}
	}
	isNew := c.onto == diffproto.State{}
	switch {
	case c.kind == stays:
		return s.describeDir(c, dir, name)
	case c.kind == removes:
		err = unix.Renameat2(dir, name, s.dir, c.name, unix.RENAME_NOREPLACE)
	case isNew:
		err = unix.Renameat2(s.dir, c.name, dir, name, unix.RENAME_NOREPLACE)
	default:
		err = unix.Renameat2(s.dir, c.name, dir, name, unix.RENAME_EXCHANGE)
	}
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) {
		return &ChangedError{[]string{"/" + c.path}}
	}
	if err != nil {
		return fmt.Errorf("rename the file at /%s: %w", c.path, err)
	}
	if c.done = true; isNew {
		return nil
	}
	old, err := stateOf(s.dir, c.name)
	if err != nil {
		return err
	}
	if old.CTime = c.onto.CTime; old != c.onto { // a rename changes this time
		return &ChangedError{[]string{"/" + c.path}}
	}
	return nil
}

// revert undoes a change, unless a program has changed the file since.
func (s *stage) revert(c *step) error {
	dir, name, err := s.parent(c)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if c.kind == stays {
		now, err := stateOf(dir, name)
		if err != nil {
			return err
		}
		if !c.isMade(now) {
			return errSaved
		}
		return c.meta.set(dir, name)
	}
	if c.kind == removes {
		return unix.Renameat2(s.dir, c.name, dir, name, unix.RENAME_NOREPLACE)
	}
	flag := uint(unix.RENAME_EXCHANGE)
	if (c.onto == diffproto.State{}) {
		flag = unix.RENAME_NOREPLACE
	}
	if err := unix.Renameat2(dir, name, s.dir, c.name, flag); err != nil {
		return err
	}
	now, err := stateOf(s.dir, c.name)
	if err == nil && !c.isMade(now) {
		err = errSaved
	}
	if err == nil && now.Mode&unix.S_IFMT == unix.S_IFDIR { // it is empty, because changes below it are undone first
		err = unix.Unlinkat(s.dir, c.name, unix.AT_REMOVEDIR)
	}
	if err != nil {
		return errors.Join(err, unix.Renameat2(s.dir, c.name, dir, name, flag))
	}
	return nil
}

// errSaved means that a program has changed a file after the file was put in its place.
var errSaved = errors.New("a program has changed the file since")

// isMade reports whether a file is still the file that commit has put in its place. It ignores the
// time that a rename changes. For a directory, it also ignores the size and all times, which change
// with the directory's entries.
func (c *step) isMade(now diffproto.State) bool {
	want := c.made
	want.CTime = now.CTime
	if want.Mode&unix.S_IFMT == unix.S_IFDIR {
		want.Size, want.MTime = now.Size, now.MTime
	}
	return now == want
}

// describeDir gives a directory its new attributes, and keeps the old ones in the step.
func (s *stage) describeDir(c *step, above int, name string) error {
	if name == "" || c.path == "." {
		name = "."
	}
	now, err := stateOf(above, name)
	if err != nil {
		return err
	}
	if !c.isSame(now) {
		return &ChangedError{[]string{"/" + c.path}}
	}
	xattrs, err := xattrsOf(inDir(above, name))
	if err != nil {
		return err
	}
	old := &meta{mode: now.Mode & 0o7777, uid: int(now.UID), gid: int(now.GID), xattrs: xattrs}
	want := c.meta
	c.meta, c.done = old, true
	err = want.set(above, name)
	c.made, _ = stateOf(above, name) // after an error, revert finds a difference and undoes nothing
	return err
}

// set gives a directory the attributes in m.
func (m *meta) set(above int, name string) error {
	fd, err := unix.Openat(above, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fchown(fd, m.uid, m.gid); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, m.mode); err != nil {
		return err
	}
	at := fmt.Sprintf("/proc/self/fd/%d", fd)
	present, err := xattrsOf(at)
	if err != nil {
		return err
	}
	for attr := range present {
		if _, ok := m.xattrs[attr]; !ok {
			if err := unix.Fremovexattr(fd, attr); err != nil {
				return fmt.Errorf("extended attribute %.100q: %w", attr, err)
			}
		}
	}
	for attr, value := range m.xattrs {
		if present[attr] != value {
			if err := unix.Fsetxattr(fd, attr, []byte(value), 0); err != nil {
				return fmt.Errorf("extended attribute %.100q: %w", attr, err)
			}
		}
	}
	return nil
}

// maxXattr bounds the value of an extended attribute, and the list of the names of a file's
// extended attributes (XATTR_SIZE_MAX and XATTR_LIST_MAX of Linux).
const maxXattr = 64 << 10

// xattrsOf returns the extended attributes of the directory at a path.
func xattrsOf(at string) (map[string]string, error) {
	list := make([]byte, maxXattr)
	n, err := unix.Listxattr(at, list)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return map[string]string{}, nil
	}
	if err != nil {
		return nil, err
	}
	values, value := make(map[string]string), make([]byte, maxXattr)
	for name := range bytes.SplitSeq(bytes.TrimSuffix(list[:n], []byte{0}), []byte{0}) {
		n, err := unix.Getxattr(at, string(name), value)
		if err != nil && !errors.Is(err, unix.ENODATA) {
			return nil, err
		}
		values[string(name)] = string(value[:max(0, n)])
	}
	return values, nil
}
