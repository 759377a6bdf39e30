// Package treetar transfers directories as tar archives. It packs the content of a directory, and
// unpacks an untrusted archive into a directory. It is used on the host and in the guest.
//
// Unpack makes only files, directories and links, but no devices. Unpack sets permissions, but no
// owners and no other mode bits. An archive cannot write outside of the directory, because the
// directory is an os.Root. The target of a symbolic link in the archive may be outside, but Unpack
// writes nothing through this link. The package does not compress, and does not preserve sparse
// files or extended attributes.
package treetar

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Bounds on the unpacked content of one archive. Without these bounds, an endless archive would
// fill the disk. A sparse entry of a few bytes may claim any size.
const (
	MaxBytes   = 64 << 30 // bytes of content
	MaxEntries = 4 << 20
)

// Bounds on a name. maxName and maxPart are Linux's bounds of a path and of its parts. maxParts
// bounds the depth, so that programs that walk the tree stay fast. All three bounds are needed,
// because a few compressed bytes may expand to a name of a megabyte.
const (
	maxName  = 4096 // bytes
	maxPart  = 255  // bytes
	maxParts = 255
)

// CheckName returns an error if the name of an entry exceeds one of these bounds.
func CheckName(name string) error {
	if len(name) > maxName {
		return fmt.Errorf("the name %.50q… has %d bytes: want at most %d", name, len(name), maxName)
	}
	parts := 0
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > maxPart {
			return fmt.Errorf("a part of the name %.50q… has %d bytes: want at most %d", name, len(part), maxPart)
		}
		if part != "" && part != "." {
			parts++
		}
	}
	if parts > maxParts {
		return fmt.Errorf("the name %.50q… has %d parts: want at most %d", name, parts, maxParts)
	}
	return nil
}

// Pack writes the content of dir to w as an archive. Entries have permissions and times. There is
// no entry for dir itself. If dir is a file, the archive has only this file. Pipes and devices
// become entries without content. If a file becomes shorter while it is packed, its entry is filled
// with zeros.
func Pack(w io.Writer, dir string) error {
	out := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		rel := ""
		if err == nil {
			rel, err = filepath.Rel(dir, name)
		}
		switch {
		case err != nil && name != dir && errors.Is(err, fs.ErrNotExist):
			return nil // the file was removed after it was listed
		case err != nil:
			return err
		case rel == "." && e.IsDir():
			return nil
		case rel == ".":
			rel = filepath.Base(name)
		}
		err = packEntry(out, name, filepath.ToSlash(rel), e)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return errors.Join(err, out.Close())
}

func packEntry(out *tar.Writer, name, rel string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: rel, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime().Round(time.Second)}
	switch info.Mode().Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, rel+"/"
		return out.WriteHeader(h)
	case fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = os.Readlink(name); err != nil {
			return err
		}
		return out.WriteHeader(h)
	case fs.ModeNamedPipe: // an entry, so that the receiver can report that the pipe was omitted
		h.Typeflag = tar.TypeFifo
		return out.WriteHeader(h)
	case fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
		h.Typeflag = tar.TypeChar
		return out.WriteHeader(h)
	case 0:
	default:
		return nil // an archive cannot contain a socket
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	return WriteFile(out, h, f)
}

// WriteFile adds a file with h.Size bytes to an archive. If the content is longer, the rest is
// omitted. If the content is shorter, the entry is filled with zeros.
func WriteFile(out *tar.Writer, h *tar.Header, content io.Reader) error {
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(out, io.LimitReader(content, h.Size))
	if err != nil {
		return err
	}
	_, err = io.CopyN(out, zeros{}, h.Size-n)
	return err
}

// zeros is an endless reader of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// Target holds the directory in which Unpack makes files, and options.
type Target struct {
	Root *os.Root
	Bits bool                    // whether entries get exactly the archive's permissions, whatever the umask is
	Left func(name string)       // called for every entry of an unsupported type; may be nil
	Made func(name string) error // called for every created file and directory; may be nil
}

// Unpack makes the entries of an archive. It replaces existing files and links, and adds entries to
// existing directories. If it fails, the entries that it has already made stay.
func Unpack(r io.Reader, to Target) error {
	in := NewReader(r)
	left, entries := int64(MaxBytes), 0
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			// Read the padding after the last block of the archive.
			_, err = io.Copy(io.Discard, io.LimitReader(r, maxPadding))
			return err
		}
		if err != nil {
			return err
		}
		if entries++; entries > MaxEntries {
			return fmt.Errorf("the archive has more than %d entries", MaxEntries)
		}
		if left -= h.Size; h.Size > 0 && left < 0 {
			return fmt.Errorf("the archive has more than %d GiB of content", MaxBytes>>30)
		}
		if err := to.unpack(h, in); err != nil {
			return err
		}
	}
}

// maxPadding bounds the bytes after the end of an archive. Programs pad an archive to a multiple of
// their block size, which is seldom more than 10 KiB.
const maxPadding = 1 << 20

func (t *Target) unpack(h *tar.Header, content io.Reader) error {
	if err := CheckName(h.Name); err != nil {
		return err
	}
	name, mode := filepath.Clean(strings.TrimLeft(h.Name, "/")), h.FileInfo().Mode().Perm()
	if name == "." {
		return nil
	}
	if err := t.mkdirs(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		if err = t.mkdirs(name, mode|0o700); err == nil && t.Bits {
			err = t.Root.Chmod(name, mode|0o700)
		}
		return err
	case tar.TypeReg, tar.TypeGNUSparse:
		err = t.file(name, mode, h.ModTime, content)
	case tar.TypeSymlink:
		if err = t.remove(name); err == nil {
			err = t.Root.Symlink(h.Linkname, name)
		}
	case tar.TypeLink:
		if err = CheckName(h.Linkname); err != nil {
			return err
		}
		if err = t.remove(name); err == nil {
			err = t.Root.Link(filepath.Clean(strings.TrimLeft(h.Linkname, "/")), name)
		}
	default:
		if t.Left != nil {
			t.Left(h.Name)
		}
		return nil
	}
	if err == nil && t.Made != nil {
		err = t.Made(name)
	}
	return err
}

// mkdirs makes a directory and its missing parents. It opens one directory after another, because a
// call with the whole path would resolve all parts of the path each time.
func (t *Target) mkdirs(name string, mode fs.FileMode) error {
	info, err := t.Root.Stat(name)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err // for example, a link leads out of the directory
	}
	at, end := t.Root, 0
	for part := range strings.SplitSeq(name, "/") {
		end += len(part)
		path, bits := name[:end], fs.FileMode(0o755)
		end++
		if path == name {
			bits = mode
		}
		next, err := t.enter(at, part, path, bits)
		if at != t.Root {
			at.Close()
		}
		if err != nil {
			return err
		}
		at = next
	}
	return at.Close()
}

// enter opens a directory, and creates it if it is missing. Its parent directory is at, its name is
// part, and its path in the tree is path.
func (t *Target) enter(at *os.Root, part, path string, mode fs.FileMode) (*os.Root, error) {
	next, err := at.OpenRoot(part)
	switch {
	case err == nil:
		return next, nil
	case !errors.Is(err, fs.ErrNotExist):
		return t.Root.OpenRoot(path) // a link may lead out of the parent, but not out of the tree
	}
	if err := at.Mkdir(part, mode); err != nil {
		return nil, err
	}
	if t.Made != nil {
		if err := t.Made(path); err != nil {
			return nil, err
		}
	}
	return at.OpenRoot(part)
}

// remove removes an existing entry, so that a new entry can have the same name. Opening the
// existing entry instead could write through a link, or block on a pipe.
func (t *Target) remove(name string) error {
	if err := t.Root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (t *Target) file(name string, mode fs.FileMode, modified time.Time, content io.Reader) error {
	if err := t.remove(name); err != nil {
		return err
	}
	f, err := t.Root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err == nil && t.Bits {
		err = f.Chmod(mode)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if modified.Unix() <= 0 {
		return nil // the archive has no times for this entry
	}
	return t.Root.Chtimes(name, modified, modified)
}
