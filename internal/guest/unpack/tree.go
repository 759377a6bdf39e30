package unpack

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/treetar"
)

// Bounds on the entries of an image, and on the memory for names that are kept while layers are
// applied.
const (
	maxEntries = 4 << 20   // entries in all layers together
	maxNames   = 128 << 20 // bytes of all kept names
	nameSize   = 64        // bytes that a kept name costs in addition to its length
)

// tree is the file system to which layers are applied. Paths of entries are relative to its root.
// No operation follows a symbolic link, because the kernel refuses paths that contain one (openat2
// with RESOLVE_NO_SYMLINKS). So neither links of the image nor ".." lead out of the tree.
type tree struct {
	root  int   // descriptor of the root directory
	size  int64 // size of the disk in bytes
	plain int64 // size of the decompressed layers so far, in bytes
	bytes int64 // size of all files in the layers so far, in bytes
	names int   // bytes of kept names

	host bool // the directory is on a host: device nodes are omitted

	entries int
	placed  map[uint64]bool      // inodes of the entries that the present layer has placed; nil after the last layer
	times   map[string]time.Time // times of directories by name; set at the end, because every new file changes them
	late    []*tar.Header        // hard links of the present layer that came before their target

	parent     int // descriptor of the cached directory parentName; -1: none is cached
	parentName string
}

// noTime is the time of files that no archive describes. It is fixed, so the same input gives the
// same files.
var noTime = time.Unix(0, 0)

// newTree returns the tree below the directory dir, on a disk of the given size in bytes.
func newTree(dir string, size int64, host bool) (*tree, error) {
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	return &tree{root: root, size: size, host: host, times: map[string]time.Time{}, parent: -1}, nil
}

func (t *tree) close() {
	t.forget()
	unix.Close(t.root)
}

// forget closes the cached parent directory.
func (t *tree) forget() {
	if t.parent >= 0 {
		unix.Close(t.parent)
		t.parent = -1
	}
}

func (t *tree) keep(name string) error {
	if t.names += len(name) + nameSize; t.names > maxNames {
		return fmt.Errorf("the names of the image's files take more than %d MiB", maxNames>>20)
	}
	return nil
}

// relative returns the name of an archive's entry as a relative path, without "./" at its
// beginning. The root itself is ".".
func relative(name string) (string, error) {
	if err := treetar.CheckName(name); err != nil {
		return "", err
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", errors.New("the name leaves the image")
		}
	}
	if strings.ContainsRune(name, 0) {
		return "", errors.New("the name has a NUL byte")
	}
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean == "" {
		return ".", nil
	}
	return clean, nil
}

// open opens an existing path of the tree, without following any symbolic link.
func (t *tree) open(name string, flags uint64) (int, error) {
	fd, err := unix.Openat2(t.root, name, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV})
	return fd, pathError(name, err)
}

// errNoPath means that a part of a path is not a directory, but a file or a symbolic link.
var errNoPath = errors.New("not a path of directories")

// pathError explains why the kernel could not follow a path.
func pathError(name string, err error) error {
	switch {
	case errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV):
		return fmt.Errorf("the path %.300q passes through a symbolic link, so it is %w: use the real path", name,
			errNoPath)
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("the path %.300q passes through a file, so it is %w", name, errNoPath)
	}
	return err
}

// dirOf returns a descriptor of the directory that contains the file with the given name, and the
// last part of the name. If create is true, it creates missing directories. The descriptor is valid
// until the next call.
func (t *tree) dirOf(name string, create bool) (fd int, base string, err error) {
	dir, base := path.Split(name)
	dir = path.Clean(dir)
	if t.parent >= 0 && t.parentName == dir {
		return t.parent, base, nil
	}
	fd, err = t.open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) && create {
		if err := t.makeDir(dir); err != nil {
			return -1, "", err
		}
		fd, err = t.open(dir, unix.O_PATH|unix.O_DIRECTORY)
	}
	if err != nil {
		return -1, "", err
	}
	t.forget()
	t.parent, t.parentName = fd, dir
	return fd, base, nil
}

// makeDir creates a directory that no entry describes, and its missing parents.
func (t *tree) makeDir(name string) error {
	if name == "." {
		return nil
	}
	fd, base, err := t.dirOf(name, true)
	if err != nil {
		return err
	}
	if err := unix.Mkdirat(fd, base, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("create directory %.300q: %w", name, err)
	}
	if err := t.keep(name); err != nil {
		return err
	}
	t.times[name] = noTime
	return t.place(fd, base)
}

// place counts an entry, and records that the present layer has placed it.
func (t *tree) place(dir int, base string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if t.entries++; t.entries > maxEntries {
		return fmt.Errorf("the image has more than %d files and directories", maxEntries)
	}
	if t.placed != nil {
		t.placed[st.Ino] = true
	}
	return nil
}

// stat returns the status of a file, and whether the file exists.
func stat(dir int, base string) (st unix.Stat_t, ok bool, err error) {
	err = unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return st, false, nil
	}
	return st, err == nil, err
}

func isDir(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// remove removes a file, or a directory with its content. It is no error if the file does not
// exist.
func (t *tree) remove(dir int, base string) error {
	t.parentName = removed
	return t.prune(dir, base, nil)
}

// removed is the parentName of a cached directory that may have been deleted. The directory of an
// entry never has this name, so the cached descriptor is not used again.
const removed = "/"

// prune removes a file or directory, but keeps files with the given inodes and the directories that
// contain such files.
func (t *tree) prune(dir int, base string, kept map[uint64]bool) error {
	st, ok, err := stat(dir, base)
	if err != nil || !ok {
		return err
	}
	if !isDir(st) {
		if kept[st.Ino] {
			return nil
		}
		return unix.Unlinkat(dir, base, 0)
	}
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := t.empty(fd, kept); err != nil {
		return err
	}
	if kept[st.Ino] {
		return nil
	}
	err = unix.Unlinkat(dir, base, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) && kept != nil {
		return nil
	}
	return err
}

// empty(fd, kept) prunes the content of the directory with the descriptor fd. treetar.CheckName
// bounds the depth of the recursion.
func (t *tree) empty(fd int, kept map[uint64]bool) error {
	names, err := list(fd)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := t.prune(fd, name, kept); err != nil {
			return err
		}
	}
	return nil
}

// list returns the names in a directory.
func list(fd int) ([]string, error) {
	var names []string
	for buf := make([]byte, 64<<10); ; {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil || n == 0 {
			return names, err
		}
		for rest := buf[:n]; len(rest) > 0; {
			used, _, more := unix.ParseDirent(rest, -1, names)
			rest, names = rest[used:], more
		}
	}
}

// writeFile writes content of the given size to the new file fd. Blocks of zeros become holes.
func writeFile(fd int, size int64, content io.Reader) error {
	const block = 64 << 10
	buf, zero := make([]byte, block), make([]byte, block)
	for at := int64(0); at < size; {
		n, err := io.ReadFull(content, buf[:min(block, size-at)])
		if err != nil {
			return fmt.Errorf("read content: %w", err)
		}
		if string(buf[:n]) != string(zero[:n]) {
			for p, off := buf[:n], at; len(p) > 0; {
				m, err := unix.Pwrite(fd, p, off)
				if err != nil {
					return err
				}
				p, off = p[m:], off+int64(m)
			}
		}
		at += int64(n)
	}
	return unix.Ftruncate(fd, size)
}

// setTimes sets the times of all directories that layers have described or needed.
func (t *tree) setTimes() error {
	for name, mod := range t.times {
		fd, err := t.open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if err != nil {
			continue // a later layer has removed or replaced the directory
		}
		err = setTime(fd, "", mod)
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("set the time of %q: %w", name, err)
		}
	}
	return nil
}

// setTime sets the times of the file with the name base in the directory dir. If base is empty, it
// sets the times of the directory itself.
func setTime(dir int, base string, mod time.Time) error {
	flags := unix.AT_SYMLINK_NOFOLLOW
	if base == "" {
		flags = unix.AT_EMPTY_PATH
	}
	if mod.Unix() < 0 || mod.Unix() > 1<<33 { // an archive may contain any time
		mod = noTime
	}
	ts := unix.NsecToTimespec(mod.UnixNano())
	return unix.UtimesNanoAt(dir, base, []unix.Timespec{ts, ts}, flags)
}
