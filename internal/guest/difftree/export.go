package difftree

import (
	"archive/tar"
	"fmt"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/diffproto"
)

// whiteout is the prefix of the name of an empty file that stands for a deleted file, as in the layers of
// container images (OCI image specification, "Whiteouts").
const whiteout = ".wh."

// Bounds of an archive.
const (
	maxPacked = 1 << 20   // number of files
	maxPaths  = 96 << 20  // bytes of the paths of all files
	maxAttrs  = 512 << 10 // bytes of the extended attributes of one file; programs read up to 1 MiB of headers
)

// export sends a tar archive with the differences between two trees. It compares first, and then packs. So
// the host learns whether the comparison has succeeded before it receives the archive.
func export(roots [2]int, req diffproto.Request, changed *changes, found func(diffproto.Done) error,
	pieces *diffproto.PieceWriter) error {
	x := &exporter{root: roots[1]}
	done, err := compare(roots, req, changed, x.add)
	if err != nil {
		return err
	}
	if done.Skipped += x.skipped; done.Skipped > 0 && !req.Partial {
		return &diffproto.RefusedError{Field: "partial", Reason: fmt.Sprintf("an archive cannot have %d of the files as"+
			" they are%s: set partial to leave them out", done.Skipped, x.why)}
	}
	if err := found(done); err != nil {
		return err
	}
	if err := x.pack(pieces); err != nil {
		return err
	}
	return pieces.Close()
}

// exporter collects the entries of an archive.
type exporter struct {
	root    int // the newer tree
	list    []packed
	held    int    // bytes of the paths in list
	gone    string // path at which only the older tree has a directory; empty: none
	skipped uint64 // number of files that an archive cannot represent exactly
	why     string // names the first skipped file; empty: none
}

// packed is an entry of an archive: the file at a path of the newer tree, or a whiteout.
type packed struct {
	path    string
	deleted bool
}

// add adds the entries for a difference.
func (x *exporter) add(e *diffproto.Entry) error {
	// A tar archive cannot have a socket, which is useless without its program.
	isDeleted := e.New.Type == diffproto.Absent || e.New.Type == diffproto.Socket
	if isDeleted && x.gone != "" && strings.HasPrefix(e.Path, x.gone+"/") {
		return nil // the whiteout of the directory, or the file in its place, covers the path
	}
	wasDir, isDir := e.Old.Type == diffproto.Directory, e.New.Type == diffproto.Directory
	if wasDir && !isDir {
		x.gone = e.Path
	}
	if strings.Contains(e.Path, "/"+whiteout) { // a name such as .wh.x would delete x where the archive is unpacked
		x.skip(e.Path, "a name in it begins with "+whiteout)
		return nil
	}
	if e.Old.Type != diffproto.Absent && (isDeleted || wasDir != isDir) {
		if err := x.keep(packed{e.Path, true}); err != nil {
			return err
		}
	}
	if isDeleted {
		return nil
	}
	f, err := x.open(e.Path)
	if err != nil {
		x.skip(e.Path, err.Error())
		return nil
	}
	defer f.close()
	if f.lacks {
		x.skip(e.Path, "it has an extended attribute with = in its name, or more than 512 KiB of them")
	}
	return x.keep(packed{e.Path, false})
}

func (x *exporter) skip(path, why string) {
	if x.skipped++; x.skipped == 1 {
		x.why = fmt.Sprintf(", such as %.200q: %s", path, why)
	}
}

func (x *exporter) keep(p packed) error {
	x.list = append(x.list, p)
	x.held += len(p.path)
	if len(x.list) > maxPacked || x.held > maxPaths {
		return &diffproto.RefusedError{Field: "path",
			Reason: fmt.Sprintf("more than %d files or %d MiB of paths differ: export a part of it", maxPacked, maxPaths>>20)}
	}
	return nil
}

// source is a file of the newer tree that is about to be packed.
type source struct {
	header *tar.Header
	dir    int    // descriptor of the file's directory
	name   string // name of the file in dir
	inode  uint64
	linked bool // whether the inode has several names
	lacks  bool // whether the header lacks extended attributes, because an archive cannot have them
}

func (f *source) close() { unix.Close(f.dir) }

// open returns the file at an absolute path. The caller must close the result.
func (x *exporter) open(at string) (f *source, err error) {
	f = &source{header: &tar.Header{Name: strings.TrimPrefix(at, "/"), Format: tar.FormatPAX}, name: path.Base(at)}
	if at == "/" {
		f.header.Name, f.name = ".", "."
	}
	if f.dir, err = openAbove(x.root, at); err != nil {
		return nil, err
	}
	if err := f.describe(); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// typeFlags are the types of the entries of an archive.
var typeFlags = map[diffproto.Type]byte{diffproto.Regular: tar.TypeReg, diffproto.Directory: tar.TypeDir,
	diffproto.Symlink: tar.TypeSymlink, diffproto.CharDevice: tar.TypeChar, diffproto.BlockDevice: tar.TypeBlock,
	diffproto.FIFO: tar.TypeFifo}

// describe fills the header.
func (f *source) describe() error {
	n, err := nodeAt(f.dir, f.name)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(f.dir, f.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	f.inode, f.linked = st.Ino, st.Nlink > 1 && n.Type == diffproto.Regular
	h, isKnown := f.header, false
	if h.Typeflag, isKnown = typeFlags[n.Type]; !isKnown {
		return unix.EINVAL
	}
	h.Mode, h.Uid, h.Gid, h.ModTime = int64(n.Mode), int(n.UID), int(n.GID), time.Unix(st.Mtim.Sec, 0)
	switch n.Type {
	case diffproto.Regular:
		h.Size = int64(n.Size)
	case diffproto.Directory:
		h.Name += "/"
	case diffproto.Symlink:
		h.Linkname = n.Target
	case diffproto.CharDevice, diffproto.BlockDevice:
		h.Devmajor, h.Devminor = int64(n.Device>>32), int64(uint32(n.Device))
	}
	values, err := xattrs(fmt.Sprintf("/proc/self/fd/%d/%s", f.dir, f.name))
	if err != nil {
		return err
	}
	h.PAXRecords = make(map[string]string, len(values))
	size := 0
	for name, value := range values {
		if size += len(name) + len(value); strings.Contains(name, "=") || size > maxAttrs {
			f.lacks = true
			continue
		}
		h.PAXRecords["SCHILY.xattr."+name] = value
	}
	return nil
}
