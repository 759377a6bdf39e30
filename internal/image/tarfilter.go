package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// maxEntries bounds the entries of an archive, because each is remembered: a large distribution image has 300,000.
const maxEntries = 4 << 20

// tarFilter copies an untrusted archive, entry by entry, into one that tar(1) may extract as root:
//
//   - names are relative, without "..", and do not pass through a symbolic link of the archive; hard links point to
//     earlier files of the archive (links that come before their file are moved to the end);
//   - every name comes once, except directories;
//   - of the extended attributes only user.* and security.capability are kept;
//   - the content is not larger than maxBytes;
//   - what overlay replaces is left out, and overlay is added.
//
// The rules refuse an archive as a whole, with an error that names the entry: half an image is of no use.
type tarFilter struct {
	out      *tar.Writer
	overlay  []overlayFile
	maxBytes int64
	devices  bool // keep device nodes

	seen  map[string]byte // type by name
	links []*tar.Header   // hard links whose file has not come yet
	bytes int64
}

// overlayFile is a file put over the archive's content, owned by root.
type overlayFile struct {
	name string // relative
	mode int64
	data []byte
}

// errTooLarge means that the content does not fit.
var errTooLarge = errors.New("the content is larger than the disk")

// copy reads the archive in to its end and completes the one on out.
func (f *tarFilter) copy(in io.Reader) error {
	f.seen = make(map[string]byte)
	t := tar.NewReader(in)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if err := f.entry(h, t); err != nil {
			return fmt.Errorf("archive entry %q: %w", h.Name, err)
		}
	}
	for _, h := range f.links {
		if err := f.link(h); err != nil {
			return fmt.Errorf("archive entry %q: %w", h.Name, err)
		}
	}
	for _, o := range f.overlay {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: o.name, Mode: o.mode, Size: int64(len(o.data))}
		if err := f.entryAt(o.name, h, bytes.NewReader(o.data)); err != nil {
			return fmt.Errorf("recipe file /%s: %w", o.name, err)
		}
	}
	if err := f.out.Close(); err != nil {
		return err
	}
	// What follows the end of the archive is padding; read it, or the writer at the other end of a pipe fails.
	_, err := io.Copy(io.Discard, in)
	return err
}

func (f *tarFilter) entry(h *tar.Header, data io.Reader) error {
	name, err := relative(h.Name)
	if err != nil {
		return err
	}
	if f.overlaid(name) {
		if h.Typeflag == tar.TypeDir {
			return errors.New("the recipe has a file where the base has a directory")
		}
		return nil
	}
	if h.Typeflag == tar.TypeLink {
		target, err := relative(h.Linkname)
		if err != nil {
			return fmt.Errorf("hard link: %w", err)
		}
		h.Name, h.Linkname = name, target
		if _, ok := f.seen[target]; !ok {
			if len(f.links) >= maxEntries {
				return fmt.Errorf("more than %d hard links", maxEntries)
			}
			f.links = append(f.links, h)
			return nil
		}
		return f.link(h)
	}
	return f.entryAt(name, h, data)
}

func (f *tarFilter) link(h *tar.Header) error {
	if typ, ok := f.seen[h.Linkname]; !ok || typ == tar.TypeDir {
		return fmt.Errorf("hard link to %q, which is no file of the archive", h.Linkname)
	}
	return f.entryAt(h.Name, h, nil)
}

// entryAt writes an entry under the clean name.
func (f *tarFilter) entryAt(name string, h *tar.Header, data io.Reader) error {
	if err := f.claim(name, h.Typeflag); err != nil {
		return err
	}
	clean := &tar.Header{
		Typeflag: h.Typeflag, Name: name, Mode: h.Mode & 0o7777, Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime,
		PAXRecords: xattrs(h.PAXRecords), Format: tar.FormatPAX,
	}
	switch h.Typeflag {
	case tar.TypeReg:
		f.bytes += h.Size
		if h.Size > f.maxBytes || f.bytes > f.maxBytes {
			return errTooLarge
		}
		clean.Size = h.Size
	case tar.TypeDir:
		clean.Name += "/"
	case tar.TypeSymlink, tar.TypeLink:
		clean.Linkname = h.Linkname
	case tar.TypeChar, tar.TypeBlock:
		if !f.devices {
			return nil
		}
		clean.Devmajor, clean.Devminor = h.Devmajor, h.Devminor
	case tar.TypeFifo:
	default:
		return fmt.Errorf("unsupported type %q", h.Typeflag)
	}
	if err := f.out.WriteHeader(clean); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	_, err := io.Copy(f.out, data)
	return err
}

// claim records name and checks it against what came before.
func (f *tarFilter) claim(name string, typ byte) error {
	if len(f.seen) >= maxEntries {
		return fmt.Errorf("more than %d entries", maxEntries)
	}
	if name == "." && typ != tar.TypeDir {
		return errors.New("the root is not a directory")
	}
	if old, ok := f.seen[name]; ok && old == tar.TypeDir && typ != tar.TypeDir {
		return errors.New("the name appears twice, once as a directory; an image that adds files through a symbolic link must use the real path")
	} else if ok && (old != tar.TypeDir || typ != tar.TypeDir) {
		return errors.New("the name appears twice")
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		old, ok := f.seen[dir]
		if ok && old == tar.TypeSymlink {
			return fmt.Errorf("the path passes through the symbolic link %q: use the real path", dir)
		}
		if ok && old != tar.TypeDir {
			return fmt.Errorf("%q is not a directory", dir)
		}
		if ok {
			break // its parents were checked when it came
		}
		// A parent may get its entry later, but it is a directory from now on.
		f.seen[dir] = tar.TypeDir
	}
	f.seen[name] = typ
	return nil
}

func (f *tarFilter) overlaid(name string) bool {
	return slices.ContainsFunc(f.overlay, func(o overlayFile) bool { return o.name == name })
}

// relative returns a name of an archive without "./" or "/" before it; "." is the root itself.
func relative(name string) (string, error) {
	if slices.Contains(strings.Split(name, "/"), "..") || strings.ContainsRune(name, 0) {
		return "", errors.New("the name leaves the archive")
	}
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean == "" {
		return ".", nil
	}
	return clean, nil
}

// xattrs returns the extended attributes worth keeping. Others belong to the host that made the archive.
func xattrs(records map[string]string) map[string]string {
	const prefix = "SCHILY.xattr."
	kept := make(map[string]string)
	for k, v := range records {
		name := strings.TrimPrefix(k, prefix)
		if name != k && (strings.HasPrefix(name, "user.") || name == "security.capability") {
			kept[k] = v
		}
	}
	return kept
}

// keepDevices reports whether this process can make device nodes. Without root they are left out; guests mount devtmpfs
// over /dev anyway.
func keepDevices() bool { return os.Geteuid() == 0 }
