package difftree

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/diffproto"
)

// Bounds of a comparison.
const (
	maxText  = 1 << 20  // bytes of a file; a larger file gets no patch
	maxNames = 1 << 20  // number of names in one directory
	maxSeen  = 50 << 20 // number of names in all directories
)

// walker compares two trees. It holds a descriptor of each directory on the path to the present
// directory.
type walker struct {
	req     diffproto.Request
	changed *changes
	send    func(*diffproto.Entry) error
	done    diffproto.Done
	sent    uint32
	patched uint64 // bytes of patches sent
	seen    int    // number of names read
	buf     [2][]byte
}

// absent is used as the descriptor of a directory that a tree does not have.
const absent = -1

// compare compares the trees in two directories.
func compare(roots [2]int, req diffproto.Request, changed *changes, send func(*diffproto.Entry) error) (
	diffproto.Done, error) {
	w := &walker{req: req, changed: changed, send: send, buf: [2][]byte{make([]byte, 256<<10), make([]byte, 256<<10)}}
	if !path.IsAbs(req.Path) || path.Clean(req.Path) != req.Path {
		return w.done, &diffproto.RefusedError{Field: "path", Reason: fmt.Sprintf("%q: want a clean, absolute path",
			req.Path)}
	}
	dirs := [2]int{absent, absent}
	defer func() { closeAll(dirs) }()
	for i, root := range roots {
		var err error
		if dirs[i], err = openAt(root, "."); err != nil {
			return w.done, err
		}
	}
	if req.Path == "/" {
		if err := w.node("/", dirs, "."); err != nil {
			return w.done, err
		}
		return w.done, w.dir("/", dirs, false)
	}
	parent, last := path.Split(req.Path)
	for part := range strings.SplitSeq(strings.Trim(parent, "/"), "/") {
		if part == "" {
			continue
		}
		for i, dir := range dirs {
			if dir == absent {
				continue
			}
			next, err := openAt(dir, part)
			if err != nil && !isMissing(err) {
				return w.done, &os.PathError{Op: "open", Path: part, Err: err}
			}
			unix.Close(dir)
			dirs[i] = next
		}
	}
	if err := w.pair("/"+strings.TrimPrefix(req.Path, "/"), dirs, [2]name{{text: last}, {text: last}}, true); err != nil {
		return w.done, err
	}
	return w.done, nil
}

// missingError means that neither tree has the path of the request.
type missingError struct{ refused diffproto.RefusedError }

func (e *missingError) Error() string { return e.refused.Reason }

func (e *missingError) Unwrap() error { return &e.refused }

func closeAll(fds [2]int) {
	for _, fd := range fds {
		if fd != absent {
			unix.Close(fd)
		}
	}
}

// openAt opens the directory with the given name in the directory dir. On an error it returns
// absent.
func openAt(dir int, name string) (int, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return absent, err
	}
	return fd, nil
}

// isMissing reports whether an error says that there is no such directory.
func isMissing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// dir compares the entries of two directories. One directory may be absent. If same is set, both
// directories are known to have the same entries.
func (w *walker) dir(at string, dirs [2]int, same bool) error {
	var names [2][]name
	for i, dir := range dirs {
		if dir == absent || same && i == 1 {
			continue
		}
		var err error
		if names[i], err = w.names(dir); err != nil {
			return w.skip(err)
		}
	}
	if same {
		names[1] = names[0]
	}
	for len(names[0])+len(names[1]) > 0 {
		var pair [2]name
		order := 0
		switch {
		case len(names[0]) == 0:
			order = 1
		case len(names[1]) == 0:
			order = -1
		default:
			order = strings.Compare(names[0][0].text, names[1][0].text)
		}
		below := [2]int{absent, absent}
		if order <= 0 {
			pair[0], names[0], below[0] = names[0][0], names[0][1:], dirs[0]
		}
		if order >= 0 {
			pair[1], names[1], below[1] = names[1][0], names[1][1:], dirs[1]
		}
		if err := w.pair(path.Join(at, cmp.Or(pair[0].text, pair[1].text)), below, pair, false); err != nil {
			return err
		}
	}
	return nil
}

// pair compares the files that two trees have at one path, and everything below. The parameter dirs
// has, for each tree, the directory that contains the file, or absent if the tree has no such file.
// If asked is set, the request names the path.
func (w *walker) pair(at string, dirs [2]int, pair [2]name, asked bool) error {
	both := dirs[0] != absent && dirs[1] != absent
	same := both && !asked && pair[0].inode == pair[1].inode && pair[0].kind == pair[1].kind &&
		pair[0].kind != unix.DT_UNKNOWN && !w.changed.has(pair[0].inode)
	if same && pair[0].kind != unix.DT_DIR {
		return nil
	}
	if len(at) > diffproto.MaxPath {
		return w.skip(unix.ENAMETOOLONG)
	}
	file := cmp.Or(pair[0].text, pair[1].text)
	var nodes [2]diffproto.Node
	var is [2]bool
	if same {
		is = [2]bool{true, true}
		nodes[0].Type, nodes[1].Type = diffproto.Directory, diffproto.Directory
	} else {
		for i, dir := range dirs {
			if dir == absent {
				continue
			}
			var err error
			if nodes[i], err = nodeAt(dir, file); err != nil && !(asked && errors.Is(err, unix.ENOENT)) {
				return w.skip(err)
			}
			is[i] = err == nil
		}
		if !is[0] && !is[1] {
			return &missingError{diffproto.RefusedError{Field: "path",
				Reason: fmt.Sprintf("%q: neither side has it; a path is not looked up through symbolic links", at)}}
		}
		if err := w.differ(at, dirs, file, nodes); err != nil {
			return err
		}
	}
	return w.below(at, dirs, file, nodes, same)
}

// below(…) compares the directory entries of two files, if at least one of the files is a
// directory. The files are described in nodes.
func (w *walker) below(at string, dirs [2]int, file string, nodes [2]diffproto.Node, same bool) error {
	opened := [2]int{absent, absent}
	defer func() { closeAll(opened) }()
	for i := range dirs {
		if nodes[i].Type != diffproto.Directory {
			continue
		}
		fd, err := openAt(dirs[i], file)
		if err != nil {
			return w.skip(err)
		}
		opened[i] = fd
	}
	if opened == [2]int{absent, absent} {
		return nil
	}
	return w.dir(at, opened, same)
}

// node compares a path that both trees have.
func (w *walker) node(at string, dirs [2]int, file string) error {
	var nodes [2]diffproto.Node
	for i, dir := range dirs {
		var err error
		if nodes[i], err = nodeAt(dir, file); err != nil {
			return w.skip(err)
		}
	}
	return w.differ(at, dirs, file, nodes)
}

// skip counts a file that cannot be compared. It returns err if the comparison cannot continue.
func (w *walker) skip(err error) error {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) {
		return err
	}
	if refused := (*diffproto.RefusedError)(nil); errors.As(err, &refused) {
		return err
	}
	w.done.Skipped++
	return nil
}

// names returns the entries of a directory, sorted by name.
func (w *walker) names(dir int) (list []name, err error) {
	var buf [64 << 10]byte
	for {
		n, err := unix.ReadDirent(dir, buf[:])
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		if list, err = parseNames(list, buf[:n]); err != nil {
			return nil, err
		}
		if len(list) > maxNames {
			return nil, &diffproto.RefusedError{Reason: fmt.Sprintf("a directory has more than %d entries", maxNames)}
		}
	}
	if w.seen += len(list); w.seen > maxSeen {
		return nil, &diffproto.RefusedError{Field: "path",
			Reason: fmt.Sprintf("it has more than %d files: compare a part of it", maxSeen)}
	}
	slices.SortFunc(list, func(a, b name) int { return strings.Compare(a.text, b.text) })
	return slices.CompactFunc(list, func(a, b name) bool { return a.text == b.text }), nil
}

// differ compares the two files that the nodes describe, and sends an entry if they differ. A node
// of the type Absent means that the tree has no such file.
func (w *walker) differ(at string, dirs [2]int, file string, nodes [2]diffproto.Node) error {
	e := &diffproto.Entry{Path: at, Old: nodes[0], New: nodes[1]}
	both := e.Old.Type != diffproto.Absent && e.New.Type != diffproto.Absent
	e.Content = e.Old.Type != e.New.Type || e.Old.Target != e.New.Target || e.Old.Device != e.New.Device ||
		e.Old.Size != e.New.Size
	if both && e.Old.Type == diffproto.Regular && !e.Content && !w.sameData(dirs, file) {
		var err error
		if e.Content, err = w.bytesDiffer(dirs, file, e.Old.Size); err != nil {
			return w.skip(err)
		}
	}
	if both && e.Old.Type == e.New.Type {
		var err error
		if e.Xattrs, err = xattrsDiffer(dirs, file); err != nil {
			return w.skip(err)
		}
	}
	if both && !e.Content && len(e.Xattrs) == 0 && e.Old.Mode == e.New.Mode && e.Old.UID == e.New.UID &&
		e.Old.GID == e.New.GID {
		return nil
	}
	switch {
	case e.Old.Type == diffproto.Absent:
		w.done.Added++
	case e.New.Type == diffproto.Absent:
		w.done.Deleted++
	default:
		w.done.Changed++
	}
	if w.sent == w.req.MaxEntries {
		return nil
	}
	if err := w.patch(e, dirs, file); err != nil {
		return w.skip(err)
	}
	w.sent++
	return w.send(e)
}

// sameData reports whether two files of the same size are known to have the same data.
func (w *walker) sameData(dirs [2]int, file string) bool {
	var st [2]unix.Stat_t
	for i, dir := range dirs {
		if unix.Fstatat(dir, file, &st[i], unix.AT_SYMLINK_NOFOLLOW) != nil {
			return false
		}
	}
	return w.changed.sameData != nil && st[0].Ino == st[1].Ino && w.changed.sameData(st[0].Ino)
}

// bytesDiffer compares the content of two files of the same size. It skips parts where both files have
// holes, because a file with holes may be larger than the disk.
func (w *walker) bytesDiffer(dirs [2]int, file string, size uint64) (bool, error) {
	var files [2]*os.File
	for i, dir := range dirs {
		f, err := openFile(dir, file)
		if err != nil {
			return false, err
		}
		defer f.Close()
		files[i] = f
	}
	for at := int64(0); ; {
		next := int64(size)
		for _, f := range files {
			data, err := f.Seek(at, unix.SEEK_DATA)
			if err == nil {
				next = min(next, data)
			} else if !errors.Is(err, unix.ENXIO) {
				return false, err
			}
		}
		if at = next; at >= int64(size) {
			return false, nil
		}
		n := min(int64(len(w.buf[0])), int64(size)-at)
		for i, f := range files {
			if _, err := f.ReadAt(w.buf[i][:n], at); err != nil {
				return false, err
			}
		}
		if !bytes.Equal(w.buf[0][:n], w.buf[1][:n]) {
			return true, nil
		}
		at += n
	}
}

// openFile opens a regular file for reading.
func openFile(dir int, file string) (*os.File, error) {
	// Without O_NONBLOCK, opening a FIFO would wait for a writer.
	fd, err := unix.Openat(dir, file, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), file), nil
}

// patch adds a patch to the entry of a text file, or the reason why the entry has no patch.
func (w *walker) patch(e *diffproto.Entry, dirs [2]int, file string) error {
	text := e.Old.Type == diffproto.Regular || e.New.Type == diffproto.Regular
	switch {
	case !e.Content || !text:
		return nil
	case !w.req.Patch:
		e.Omitted = diffproto.NotAsked
		return nil
	case w.patched >= w.req.MaxPatch:
		e.Omitted = diffproto.Limit
		return nil
	}
	var sides [2][]byte
	for i, n := range []diffproto.Node{e.Old, e.New} {
		if n.Type != diffproto.Regular {
			continue
		}
		if n.Size > maxText {
			e.Omitted = diffproto.Large
			return nil
		}
		f, err := openFile(dirs[i], file)
		if err != nil {
			return err
		}
		sides[i], err = io.ReadAll(io.LimitReader(f, maxText+1))
		f.Close()
		if err != nil {
			return err
		}
		if !utf8.Valid(sides[i]) || bytes.IndexByte(sides[i], 0) >= 0 {
			e.Omitted = diffproto.Binary
			return nil
		}
	}
	patch, added, deleted := unified(sides[0], sides[1])
	e.LinesAdded, e.LinesDeleted = uint32(added), uint32(deleted)
	w.done.LinesAdded += uint64(added)
	w.done.LinesDeleted += uint64(deleted)
	switch {
	case len(patch) > diffproto.MaxPatch:
		e.Omitted = diffproto.Large
	case uint64(len(patch)) > w.req.MaxPatch-w.patched:
		e.Omitted = diffproto.Limit
	default:
		e.Patch = patch
		w.patched += uint64(len(patch))
	}
	return nil
}
