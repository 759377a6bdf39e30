package apply

import (
	"archive/tar"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/diffproto"
	"github.com/forkd/forkd/internal/treetar"
)

// xattrRecord is the prefix of the records that have extended attributes.
const xattrRecord = "SCHILY.xattr."

// Bounds of an archive.
const (
	maxSteps = diffproto.MaxMerged
	maxPaths = diffproto.MaxMergedPaths // bytes of the paths
	maxAttrs = 4 << 20                  // bytes of the new attributes of existing directories
)

// stage is the directory that has the new files, and later the old ones.
type stage struct {
	root  int // descriptor of the tree's root
	dir   int
	name  string // name of dir in root
	steps []*step
	paths map[string]int // steps by path
	bytes int            // total length of the paths
	attrs int            // bytes of the new attributes of existing directories
	ended bool           // the end of the archive was read
	until time.Time      // deadline of unpacking; see unpackTime
}

// unpackTime bounds the time for unpacking an archive. A sparse file takes few bytes of an archive, but its zeros are
// all read, so neither the size of the archive nor the end of the request bounds the time.
const unpackTime = 10 * time.Minute

var errTooLong = fmt.Errorf("unpacking the changes takes more than %v: apply fewer files, or no large sparse files",
	unpackTime)

// step is one change.
type step struct {
	path string          // relative; "." is the root
	onto diffproto.State // state of the file to be replaced, at the time of the comparison
	kind kind
	meta *meta           // the directory's new attributes; only if kind is stays
	name string          // name in the stage: of the new file before the change, of the old file after it
	made diffproto.State // state of the new file, or of the directory with its new attributes
	done bool            // the change was made
}

// kind says how a change is made.
type kind uint8

const (
	removes kind = iota // the file is renamed into the stage
	places              // a file of the stage is renamed to the path
	stays               // a directory gets other attributes
)

// meta has the attributes of a directory.
type meta struct {
	mode     uint32
	uid, gid int
	xattrs   map[string]string
}

// newStage makes the directory of a stage.
func newStage(root int) (*stage, error) {
	s := &stage{root: root, name: ".forkd-apply-" + rand.Text(), paths: make(map[string]int),
		until: time.Now().Add(unpackTime)}
	if err := unix.Mkdirat(root, s.name, 0o700); err != nil {
		return nil, fmt.Errorf("make a directory for the new files: %w", err)
	}
	var err error
	s.dir, err = unix.Openat(root, s.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(err, unix.Unlinkat(root, s.name, unix.AT_REMOVEDIR))
	}
	return s, nil
}

// unpack puts the new files of an archive into the stage.
func (s *stage) unpack(archive io.Reader) error {
	in := treetar.NewReader(archive)
	for {
		h, err := in.Next()
		switch {
		case errors.Is(err, io.EOF) && s.ended:
			_, err = io.Copy(io.Discard, io.LimitReader(archive, 1)) // read until the end of the request
			return err
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the archive is cut off: %w", io.ErrUnexpectedEOF)
		case err != nil:
			return err
		case s.ended:
			return errors.New("the archive goes on after its end")
		}
		if end := h.PAXRecords[diffproto.RecordEnd]; h.Typeflag == tar.TypeXGlobalHeader && end != "" {
			if end != strconv.Itoa(len(s.steps)) {
				return fmt.Errorf("the archive has %d changes, but its end says %.20q", len(s.steps), end)
			}
			s.ended = true
			continue
		}
		if err := s.add(h, in); err != nil {
			return fmt.Errorf("%.300q: %w", h.Name, err)
		}
	}
}

// add adds the change of an entry.
func (s *stage) add(h *tar.Header, content io.Reader) error {
	if err := treetar.CheckName(h.Name); err != nil {
		return err
	}
	p := strings.TrimSuffix(h.Name, "/")
	if p == "" || path.IsAbs(p) || path.Clean(p) != p || strings.HasPrefix(p, "../") || p == ".." ||
		strings.ContainsRune(p, 0) || strings.HasPrefix(p+"/", s.name+"/") {
		return errors.New("want a clean, relative path in the tree")
	}
	onto, err := diffproto.ParseState(h.PAXRecords[diffproto.RecordOnto])
	if err != nil {
		return err
	}
	if _, twice := s.paths[p]; twice || len(s.steps) == maxSteps || s.bytes+len(p) > maxPaths {
		return fmt.Errorf("the archive has the path twice, or more than %d files or %d MiB of paths", maxSteps,
			maxPaths>>20)
	}
	c := &step{path: p, onto: onto, kind: places, name: strconv.Itoa(len(s.steps))}
	switch isDir := h.Typeflag == tar.TypeDir; {
	case h.PAXRecords[diffproto.RecordDelete] != "":
		c.kind = removes
	case isDir && onto.Mode&unix.S_IFMT == unix.S_IFDIR:
		c.kind, c.meta = stays, metaOf(h)
		for name, value := range c.meta.xattrs {
			s.attrs += len(name) + len(value)
		}
		if s.attrs > maxAttrs {
			return fmt.Errorf("the attributes of all directories have more than %d MiB", maxAttrs>>20)
		}
	default:
		err = s.create(h, c.name, content)
	}
	if p == "." && c.kind != stays {
		return errors.New("the root can neither be removed nor replaced")
	}
	s.paths[p] = len(s.steps)
	s.steps, s.bytes = append(s.steps, c), s.bytes+len(p)
	return err
}

// metaOf returns the attributes in a header.
func metaOf(h *tar.Header) *meta {
	m := &meta{mode: uint32(h.Mode) & 0o7777, uid: h.Uid, gid: h.Gid, xattrs: make(map[string]string)}
	for record, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(record, xattrRecord); ok {
			m.xattrs[name] = value
		}
	}
	return m
}

// create makes a new file in the stage.
func (s *stage) create(h *tar.Header, name string, content io.Reader) error {
	var err error
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		err = s.file(name, h.Size, content)
	case tar.TypeDir:
		err = unix.Mkdirat(s.dir, name, 0o700)
	case tar.TypeSymlink:
		err = unix.Symlinkat(h.Linkname, s.dir, name)
	case tar.TypeLink:
		first, ok := s.paths[h.Linkname]
		if !ok || s.steps[first].kind != places {
			return errors.New("a hard link to a file that is not before it in the archive")
		}
		return unix.Linkat(s.dir, s.steps[first].name, s.dir, name, 0) // the new link has the attributes of its file
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		types := map[byte]uint32{tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK, tar.TypeFifo: unix.S_IFIFO}
		if h.Devmajor < 0 || h.Devmajor > math.MaxUint32 || h.Devminor < 0 || h.Devminor > math.MaxUint32 {
			return errors.New("a device with impossible numbers")
		}
		err = unix.Mknodat(s.dir, name, types[h.Typeflag]|0o600, int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))))
	default:
		return fmt.Errorf("an entry of type %q", h.Typeflag)
	}
	if err == nil {
		err = s.describe(h, name)
	}
	return err
}

// describe sets the attributes of a new file. The owner comes first, because a change of the owner removes
// capabilities and the set-user-ID bit.
func (s *stage) describe(h *tar.Header, name string) error {
	m := metaOf(h)
	if err := unix.Fchownat(s.dir, name, m.uid, m.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeSymlink { // Fchmodat would follow a link, but this file is not a link
		if err := unix.Fchmodat(s.dir, name, m.mode, 0); err != nil {
			return err
		}
	}
	for attr, value := range m.xattrs {
		if err := unix.Lsetxattr(inDir(s.dir, name), attr, []byte(value), 0); err != nil {
			return fmt.Errorf("extended attribute %.100q: %w", attr, err)
		}
	}
	at := unix.NsecToTimespec(h.ModTime.UnixNano())
	return unix.UtimesNanoAt(s.dir, name, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW)
}

// inDir returns a path of a file in a directory, for system calls that take no descriptor of a directory.
func inDir(dir int, name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", dir, name) }

// block is the size of the smallest hole that a new file keeps.
const block = 64 << 10

// file writes a new regular file. Blocks of zeros become holes.
func (s *stage) file(name string, size int64, content io.Reader) (err error) {
	fd, err := unix.Openat(s.dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	buf, zero := make([]byte, block), make([]byte, block)
	for at := int64(0); at < size; {
		if time.Now().After(s.until) {
			return errTooLong
		}
		n, err := io.ReadFull(content, buf[:min(block, size-at)])
		if err != nil {
			return err
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
