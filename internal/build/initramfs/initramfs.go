// Package initramfs writes the cpio archive ("newc" form) that a Linux kernel unpacks as its first
// root file system.
//
// The output depends only on the calls: it contains no time, owner or inode number of the host. So
// archives with the same content have the same bytes, and can be cached by their digest. The
// archive is not compressed. The package cannot read archives.
//
// The package writes the format itself: each entry has a header of 110 bytes (Linux
// Documentation/driver-api/early-userspace/buffer-format.rst). It does not use the usual cpio
// library, because that library does not support device nodes.
package initramfs

import (
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strings"
)

// File type bits of the mode field, as in stat(2).
const (
	typeDir     = 0o040000
	typeRegular = 0o100000
	typeSymlink = 0o120000
	typeChar    = 0o020000
)

const trailer = "TRAILER!!!"

// Writer writes one archive. All entries belong to root. Missing parent directories are added with
// mode 0755. After an error, every further call returns that error.
type Writer struct {
	w     io.Writer
	inode uint32
	// bytes written so far; names and contents are padded until this is a multiple of 4
	off  int64
	seen map[string]bool
	err  error
}

// NewWriter returns a Writer on w. Close completes the archive.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w, seen: make(map[string]bool)} }

// Dir adds a directory with the permission bits perm. If the name exists, Dir does nothing.
func (w *Writer) Dir(name string, perm uint32) error {
	if w.err == nil && w.seen[clean(name)] {
		return nil
	}
	return w.entry(name, typeDir|perm, 0, 0, nil)
}

// File adds a regular file with permission bits perm.
func (w *Writer) File(name string, perm uint32, data []byte) error {
	return w.entry(name, typeRegular|perm, 0, 0, data)
}

// Symlink adds a symbolic link with the given name, which leads to target.
func (w *Writer) Symlink(name, target string) error {
	return w.entry(name, typeSymlink|0o777, 0, 0, []byte(target))
}

// CharDevice adds a character device node.
func (w *Writer) CharDevice(name string, perm, major, minor uint32) error {
	return w.entry(name, typeChar|perm, major, minor, nil)
}

// Close writes the trailer and pads the archive to 512 bytes. It does not close the underlying
// writer.
func (w *Writer) Close() error {
	w.header(trailer, 0, 0, 0, 0)
	w.pad(512)
	if w.err != nil {
		return w.err
	}
	w.err = errors.New("initramfs: archive is closed")
	return nil
}

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

func (w *Writer) entry(name string, mode, major, minor uint32, data []byte) error {
	name = clean(name)
	switch {
	case w.err != nil:
		return w.err
	case name == "":
		w.err = errors.New("initramfs: entry without a name")
	case w.seen[name]:
		w.err = fmt.Errorf("initramfs: %s is there twice", name)
	case int64(len(data)) > math.MaxUint32:
		w.err = fmt.Errorf("initramfs: %s is larger than 4 GiB", name)
	}
	if w.err != nil {
		return w.err
	}
	if parent := path.Dir(name); parent != "." {
		if err := w.Dir(parent, 0o755); err != nil {
			return err
		}
	}
	w.seen[name] = true
	w.header(name, mode, uint32(len(data)), major, minor)
	w.write(data)
	w.pad(4)
	return w.err
}

func (w *Writer) header(name string, mode, size, major, minor uint32) {
	w.inode++
	links := uint32(1)
	if mode&typeDir != 0 { // directories are the only entries here that have this bit
		links = 2
	}
	fields := [13]uint32{
		w.inode, mode, 0, 0, links, 0, size, // uid, gid and mtime are 0
		0, 0, major, minor, uint32(len(name) + 1), 0,
	}
	var b strings.Builder
	b.WriteString("070701")
	for _, f := range fields {
		fmt.Fprintf(&b, "%08x", f)
	}
	b.WriteString(name)
	b.WriteByte(0)
	w.write([]byte(b.String()))
	w.pad(4)
}

func (w *Writer) pad(align int64) {
	w.write(make([]byte, (align-w.off%align)%align))
}

func (w *Writer) write(b []byte) {
	if w.err != nil {
		return
	}
	n, err := w.w.Write(b)
	w.off += int64(n)
	if err != nil {
		w.err = fmt.Errorf("write initramfs: %w", err)
	}
}
