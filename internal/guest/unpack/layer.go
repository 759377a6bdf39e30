package unpack

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/imageproto"
	"github.com/forkd/forkd/internal/treetar"
)

// Names that mark deletions in layers, called whiteouts (OCI image spec, layer.md).
const (
	whiteoutPrefix = ".wh."
	whiteoutOpaque = ".wh..wh..opq"
	whiteoutMeta   = ".wh..wh." // prefix of names that union file systems use internally; no image needs such files
)

// maxWindow bounds the memory that a layer's compression may require, in bytes. The program zstd
// has the same limit.
const maxWindow = 128 << 20

// maxPlain returns the maximum size of a decompressed layer, in bytes. If a layer fits on the disk
// and does not overwrite its own files, its size is below this maximum.
func (t *tree) maxPlain() int64 { return 2*t.size + 64<<20 }

// maxTotal returns the maximum size of all decompressed layers together, in bytes. The same maximum
// applies to the content of all files in the layers. Without a maximum, a header could list one
// blob many times, as many layers.
func (t *tree) maxTotal() int64 { return 2 * t.maxPlain() }

// apply applies a layer. After an error the tree is of no use.
func (t *tree) apply(l imageproto.Layer, compressed io.Reader) error {
	plain, err := decompress(compressed)
	if err != nil {
		return err
	}
	sum := sha256.New()
	most := min(t.maxPlain(), t.maxTotal()-t.plain)
	limited := &bounded{r: plain, left: most}
	defer func() { t.plain += most - limited.left }()
	content := io.TeeReader(limited, sum)
	t.placed = map[uint64]bool{}
	in := treetar.NewReader(content)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if err := t.entry(h, in, l.Files); err != nil {
			return fmt.Errorf("archive entry %.300q: %w", h.Name, t.full(err))
		}
	}
	for _, h := range t.late {
		if err := t.link(h, true); err != nil {
			return fmt.Errorf("archive entry %.300q: %w", h.Name, err)
		}
	}
	t.late = nil
	// The digest also covers the padding that follows the archive's end.
	if _, err := io.Copy(io.Discard, content); err != nil {
		return fmt.Errorf("read archive: %w", err)
	}
	if _, err := io.Copy(io.Discard, compressed); err != nil {
		return err
	}
	return checkSum(l.DiffID, sum)
}

func checkSum(want string, sum hash.Hash) error {
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); want != "" && got != want {
		return fmt.Errorf("the container image is damaged: content has digest %s, its configuration says %s", got, want)
	}
	return nil
}

// errFull means that the content does not fit on the disk.
var errFull = errors.New("the content is larger than the disk: raise disk_mib")

func (t *tree) full(err error) error {
	if errors.Is(err, unix.ENOSPC) && !t.host {
		return errFull
	}
	return err
}

// decompress returns a reader of the uncompressed archive.
func decompress(r io.Reader) (io.Reader, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	magic, _ := in.Peek(4) // a layer that is too short for Peek is not compressed
	switch {
	case bytes.HasPrefix(magic, []byte("\x1f\x8b")): // RFC 1952, section 2.3.1
		return gzip.NewReader(in)
	case bytes.HasPrefix(magic, []byte("\x28\xb5\x2f\xfd")): // RFC 8878, section 3.1.1
		return zstd.NewReader(in, zstd.WithDecoderMaxMemory(maxWindow), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderConcurrency(1))
	}
	return in, nil
}

// bounded is a reader that returns an error after it has read the number of bytes in left.
type bounded struct {
	r    io.Reader
	left int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the image decompresses to much more than the disk holds: %w", errFull)
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// entry applies one entry of a layer. If files is true, the layer has the files of a recipe.
func (t *tree) entry(h *tar.Header, content io.Reader, files bool) error {
	name, err := relative(h.Name)
	if err != nil {
		return err
	}
	if err := checkHeader(h); err != nil {
		return err
	}
	h.Name = name
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return errors.New("the root is not a directory")
		}
		return t.directory(h)
	}
	_, base := splitName(name)
	if strings.HasPrefix(base, whiteoutPrefix) && !files {
		return t.whiteout(name)
	}
	dir, base, err := t.dirOf(name, true)
	if err != nil {
		return err
	}
	if files {
		if done, err := t.checkFile(dir, base, h); done || err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return t.directory(h)
	case tar.TypeReg, tar.TypeGNUSparse:
		if t.bytes += h.Size; h.Size > t.size || t.bytes > t.maxTotal() {
			return errFull
		}
		return t.regular(dir, base, h, content)
	case tar.TypeLink:
		return t.link(h, false)
	case tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return t.special(dir, base, h)
	}
	return fmt.Errorf("unsupported type %q", h.Typeflag)
}

func splitName(name string) (dir, base string) {
	i := strings.LastIndexByte(name, '/')
	return name[:i+1], name[i+1:]
}

// checkHeader refuses owners and device numbers that the file system would store as other numbers.
func checkHeader(h *tar.Header) error {
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) >= math.MaxUint32 || int64(h.Gid) >= math.MaxUint32 {
		return fmt.Errorf("owner %d:%d: want numbers from 0 to %d", h.Uid, h.Gid, uint32(math.MaxUint32-1))
	}
	device := h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeBlock
	const maxMajor, maxMinor = 1<<12 - 1, 1<<20 - 1 // MINORBITS of Linux
	if device && (h.Devmajor < 0 || h.Devmajor > maxMajor || h.Devminor < 0 || h.Devminor > maxMinor) {
		return fmt.Errorf("device %d:%d: want numbers up to %d:%d", h.Devmajor, h.Devminor, maxMajor, maxMinor)
	}
	return nil
}

// checkFile checks an entry of a recipe's files against the tree. It reports whether the entry is a
// directory that already exists.
func (t *tree) checkFile(dir int, base string, h *tar.Header) (done bool, err error) {
	st, ok, err := stat(dir, base)
	switch {
	case err != nil || !ok:
		return false, err
	case h.Typeflag == tar.TypeDir && !isDir(st):
		return false, errors.New("the base has a file or a symbolic link where the recipe has a directory")
	case h.Typeflag != tar.TypeDir && isDir(st):
		return false, errors.New("the recipe has a file where the base has a directory")
	}
	return isDir(st), nil
}

// directory creates a directory, or changes an existing directory to match the entry.
func (t *tree) directory(h *tar.Header) error {
	dir, base := t.root, "."
	if h.Name != "." {
		var err error
		if dir, base, err = t.dirOf(h.Name, true); err != nil {
			return err
		}
		st, ok, err := stat(dir, base)
		if err == nil && ok && !isDir(st) {
			err, ok = unix.Unlinkat(dir, base, 0), false
		}
		if err == nil && !ok {
			err = unix.Mkdirat(dir, base, 0o700)
		}
		if err == nil {
			err = t.place(dir, base)
		}
		if err != nil {
			return err
		}
	}
	if _, ok := t.times[h.Name]; !ok {
		if err := t.keep(h.Name); err != nil {
			return err
		}
	}
	t.times[h.Name] = h.ModTime
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return describe(fd, h)
}

// describe sets the owner, mode and extended attributes of an open file. It sets the owner first,
// because setting the owner resets some mode bits and attributes.
func describe(fd int, h *tar.Header) error {
	if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, uint32(h.Mode&0o7777)); err != nil {
		return err
	}
	for name, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(name, "SCHILY.xattr.")
		// Other attributes concern only the host that made the archive.
		if !ok || !strings.HasPrefix(name, "user.") && (name != "security.capability" || h.Typeflag == tar.TypeDir) {
			continue
		}
		if err := unix.Fsetxattr(fd, name, []byte(value), 0); err != nil {
			return fmt.Errorf("extended attribute %.100q: %w", name, err)
		}
	}
	return nil
}

func (t *tree) regular(dir int, base string, h *tar.Header, content io.Reader) error {
	if err := t.replace(dir, base); err != nil {
		return err
	}
	fd, err := unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	err = writeFile(fd, h.Size, content)
	if err == nil {
		err = describe(fd, h)
	}
	if err == nil {
		err = setTime(fd, "", h.ModTime)
	}
	if closed := unix.Close(fd); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return t.place(dir, base)
}

// replace removes the file or directory that an entry is about to replace.
func (t *tree) replace(dir int, base string) error {
	st, ok, err := stat(dir, base)
	if err != nil || !ok {
		return err
	}
	if isDir(st) && t.placed[st.Ino] {
		return errors.New("the name appears twice, once as a directory; an image that adds files through a symbolic link must use the real path")
	}
	return t.remove(dir, base)
}

// link makes a hard link. If the target is missing and the layer has not ended, link stores the
// entry in t.late, because the target may come later in the layer.
func (t *tree) link(h *tar.Header, ended bool) error {
	target, err := relative(h.Linkname)
	if err != nil {
		return fmt.Errorf("hard link: %w", err)
	}
	from, fromBase := splitName(target)
	fd, err := t.open("./"+from, unix.O_PATH|unix.O_DIRECTORY)
	var st unix.Stat_t
	ok := false
	if err == nil {
		defer unix.Close(fd)
		st, ok, err = stat(fd, fromBase)
	}
	switch {
	case (errors.Is(err, unix.ENOENT) || err == nil && !ok) && !ended:
		if err := t.keep(h.Name + target); err != nil {
			return err
		}
		t.late = append(t.late, &tar.Header{Name: h.Name, Linkname: target})
		return nil
	case err != nil && !errors.Is(err, unix.ENOENT):
		return fmt.Errorf("hard link: %w", err)
	case !ok || isDir(st):
		return fmt.Errorf("hard link to %.300q, which is no file of the image", target)
	}
	if target == h.Name {
		return nil
	}
	dir, base, err := t.dirOf(h.Name, true)
	if err != nil {
		return err
	}
	if err := t.replace(dir, base); err != nil {
		return err
	}
	if err := unix.Linkat(fd, fromBase, dir, base, 0); err != nil {
		return err
	}
	return t.place(dir, base)
}

// special makes a symbolic link, a device or a named pipe.
func (t *tree) special(dir int, base string, h *tar.Header) error {
	if t.host && (h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeBlock) {
		return nil
	}
	if err := t.replace(dir, base); err != nil {
		return err
	}
	mode := uint32(h.Mode & 0o7777)
	var err error
	switch h.Typeflag {
	case tar.TypeSymlink:
		if err := treetar.CheckName(h.Linkname); err != nil {
			return fmt.Errorf("symbolic link: %w", err)
		}
		err = unix.Symlinkat(h.Linkname, dir, base)
	case tar.TypeFifo:
		err = unix.Mknodat(dir, base, unix.S_IFIFO|mode, 0)
	case tar.TypeChar:
		err = unix.Mknodat(dir, base, unix.S_IFCHR|mode, int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))))
	case tar.TypeBlock:
		err = unix.Mknodat(dir, base, unix.S_IFBLK|mode, int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))))
	}
	if err == nil {
		err = unix.Fchownat(dir, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil {
		err = setTime(dir, base, h.ModTime)
	}
	if err != nil {
		return err
	}
	return t.place(dir, base)
}

// whiteout removes files of lower layers. Files of the present layer stay, whether they come before
// or after the whiteout.
func (t *tree) whiteout(name string) error {
	dir, base := splitName(name)
	fd, err := t.open("./"+dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	t.forget() // the cached parent directory may be removed below
	switch hidden := strings.TrimPrefix(base, whiteoutPrefix); {
	case base == whiteoutOpaque:
		return t.empty(fd, t.placed)
	case strings.HasPrefix(base, whiteoutMeta):
		return nil
	case hidden == "" || hidden == "." || hidden == "..":
		return errors.New("a whiteout without the name of a file")
	default:
		return t.prune(fd, hidden, t.placed)
	}
}
