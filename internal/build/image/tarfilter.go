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

	"github.com/forkd/forkd/internal/treetar"
)

// headerSize is the cost in bytes of a hard link that waits for its file, in addition to its names.
const headerSize = 256

// tarFilter copies an untrusted archive, entry by entry, into an archive that tar(1) may extract as
// root:
//
//   - names are relative, without "..", and do not pass through a symbolic link of the archive;
//     hard links point to earlier files of the archive (links that come before their file are moved
//     to the end);
//   - names are short enough for a file system (treetar.CheckName), and together take no more than
//     maxNames;
//   - every name occurs once, except directories;
//   - of the extended attributes only user.* and security.capability are kept;
//   - the content is not larger than maxBytes;
//   - entries that overlay replaces are omitted, and overlay is added, with the directories that it
//     needs;
//   - the account is added, if requested;
//   - an entry of defaults is added if the archive lacks the file, or has an empty one.
//
// An archive that breaks a rule is refused as a whole, with an error that names the entry: half an
// image is of no use.
type tarFilter struct {
	out      *tar.Writer
	overlay  []overlayFile
	defaults []overlayFile
	account  *account // nil: none
	maxBytes int64
	devices  bool // keep device nodes

	names    nameBudget
	seen     map[string]byte // type by name
	made     map[string]bool // directories that have an entry in out
	empty    map[string]bool // regular files without content
	replaced map[string]bool // names in overlay, except directories
	links    []*tar.Header   // hard links whose file has not been read yet
	bytes    int64
}

// overlayFile is a file put over the archive's content.
type overlayFile struct {
	name     string // relative
	typ      byte   // tar.TypeReg, tar.TypeDir or tar.TypeSymlink
	mode     int64
	uid, gid int
	data     []byte
	link     string // of a symbolic link
}

// errTooLarge means that the content does not fit.
var errTooLarge = errors.New("the content is larger than the disk")

// copy reads the archive from in to its end and completes the archive on out. It does not read data
// after the end of the archive.
func (f *tarFilter) copy(in io.Reader) error {
	f.seen, f.made, f.empty, f.replaced = map[string]byte{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, o := range f.overlay {
		if o.typ != tar.TypeDir {
			f.replaced[o.name] = true
		}
	}
	t := treetar.NewReader(in)
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
		if err := f.add(o); err != nil {
			return fmt.Errorf("recipe file /%s: %w", o.name, err)
		}
	}
	if f.account != nil {
		if err := f.addAccount(); err != nil {
			return fmt.Errorf("user: %w", err)
		}
	}
	for _, o := range f.defaults {
		if err := f.addDefault(o); err != nil {
			return fmt.Errorf("default file /%s: %w", o.name, err)
		}
	}
	return f.out.Close()
}

// add puts a file over the archive's content. An existing directory is not changed.
func (f *tarFilter) add(o overlayFile) error {
	if old, ok := f.seen[o.name]; ok && o.typ == tar.TypeDir && old != tar.TypeDir {
		return errors.New("the base has a file or a symbolic link where the recipe has a directory")
	}
	if o.typ == tar.TypeDir && f.made[o.name] {
		return nil
	}
	if err := f.claim(o.name, o.typ); err != nil {
		return err
	}
	return f.put(o)
}

// addDefault adds a file that the archive lacks or has empty. If the directories in its path are
// something else, it adds nothing.
func (f *tarFilter) addDefault(o overlayFile) error {
	if _, ok := f.seen[o.name]; ok && !f.empty[o.name] {
		return nil
	}
	for dir := path.Dir(o.name); dir != "."; dir = path.Dir(dir) {
		if typ, ok := f.seen[dir]; ok && typ != tar.TypeDir {
			return nil
		}
	}
	f.seen[o.name] = o.typ
	return f.put(o)
}

// put writes o after those of its parent directories that have no entry yet. Otherwise tar would
// create them with permissions from its umask.
func (f *tarFilter) put(o overlayFile) error {
	for i, c := range o.name {
		if dir := o.name[:i]; c == '/' && !f.made[dir] {
			if err := f.write(dir, &tar.Header{Typeflag: tar.TypeDir, Mode: 0o755}, nil); err != nil {
				return err
			}
		}
	}
	h := &tar.Header{Typeflag: o.typ, Mode: o.mode, Uid: o.uid, Gid: o.gid, Size: int64(len(o.data)), Linkname: o.link}
	return f.write(o.name, h, bytes.NewReader(o.data))
}

func (f *tarFilter) entry(h *tar.Header, data io.Reader) error {
	name, err := relative(h.Name)
	if err != nil {
		return err
	}
	if f.replaced[name] {
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
			if err := f.names.keep(len(name) + len(target) + headerSize); err != nil {
				return err
			}
			h.PAXRecords = nil // a link shares the attributes of its file
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

// entryAt writes an entry of the archive under the clean name.
func (f *tarFilter) entryAt(name string, h *tar.Header, data io.Reader) error {
	if err := f.claim(name, h.Typeflag); err != nil {
		return err
	}
	if f.account != nil {
		var held bool
		var err error
		if data, held, err = f.account.take(name, h, data); err != nil || held {
			return err
		}
	}
	return f.write(name, h, data)
}

// write writes an entry whose name is clean and checked.
func (f *tarFilter) write(name string, h *tar.Header, data io.Reader) error {
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
		if h.Size == 0 {
			f.empty[name] = true
		}
	case tar.TypeDir:
		clean.Name += "/"
		f.made[name] = true
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

// claim records name after checking it against the names before it.
func (f *tarFilter) claim(name string, typ byte) error {
	if name == "." && typ != tar.TypeDir {
		return errors.New("the root is not a directory")
	}
	if old, ok := f.seen[name]; ok && old == tar.TypeDir && typ != tar.TypeDir {
		return errors.New("the name appears twice, once as a directory; an image that adds files through a symbolic link must use the real path")
	} else if ok && (old != tar.TypeDir || typ != tar.TypeDir) {
		return errors.New("the name appears twice")
	}
	for end := strings.LastIndexByte(name, '/'); end > 0; end = strings.LastIndexByte(name[:end], '/') {
		dir := name[:end]
		old, ok := f.seen[dir]
		if ok && old == tar.TypeSymlink {
			return fmt.Errorf("the path passes through the symbolic link %q: use the real path", dir)
		}
		if ok && old != tar.TypeDir {
			return fmt.Errorf("%q is not a directory", dir)
		}
		if ok {
			break // the parents of this directory were checked already
		}
		// A parent may get its entry later, but from now on it must be a directory.
		if err := f.names.keep(0); err != nil { // the parent's name shares the bytes of the name
			return err
		}
		f.seen[dir] = tar.TypeDir
	}
	f.seen[name] = typ
	return f.names.keep(len(name))
}

// relative returns a name of an archive without a leading "./" or "/"; "." is the root itself.
func relative(name string) (string, error) {
	if err := treetar.CheckName(name); err != nil {
		return "", err
	}
	if slices.Contains(strings.Split(name, "/"), "..") || strings.ContainsRune(name, 0) {
		return "", errors.New("the name leaves the archive")
	}
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean == "" {
		return ".", nil
	}
	return clean, nil
}

// xattrs returns the extended attributes worth keeping. Others belong to the host that made the
// archive.
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

// keepDevices reports whether this process can create device nodes. Without root they are omitted;
// guests mount devtmpfs over /dev anyway.
func keepDevices() bool { return os.Geteuid() == 0 }
