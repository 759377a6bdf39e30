package build

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/treetar"
)

// Bounds on a build context.
const (
	maxContext = apiv1.MaxBuildContent
	maxEntries = apiv1.MaxBuildEntries
	maxNames   = apiv1.MaxBuildNames
	keepFree   = 1 << 30 // bytes of the disk that remain free for other uses

	entrySize = 384 // bytes of memory that an entry takes in addition to its name and the target of a link
)

// Bounds on all build contexts together, in MiB. One client can use at most its fair share of each.
const (
	maxListsMiB    = 256      // MiB of memory for the lists of files
	maxContentsMiB = 24 << 10 // MiB of the disk for contents
)

// Context is a build context from a client: the list of its files, and their content by digest.
type Context struct {
	dir   string
	files []plan.File

	seen map[string]int // indexes of files, by path; nil: the list is complete
	left int64          // bytes of content that the context may still take

	unpacked atomic.Int64 // decompressed bytes of all archives of the build; see maxUnpacked

	names    int // bytes of names; see maxNames
	list     *held
	contents *held
}

// held counts the places that one context holds in a shared gate. Each place stands for one MiB.
type held struct {
	hold  *gate.Hold
	bytes int64 // bytes in use
	mib   int64 // places held
}

// shareOf returns the count of places for a client's context. At first, the context holds no
// places. The gate must have a place for each MiB.
func shareOf(g *gate.Gate, who string) *held {
	_, total := g.Count()
	return &held{hold: g.Hold(owner.FairShare(who, total))}
}

// add takes places for more bytes.
func (h *held) add(bytes int64) error {
	h.bytes += bytes
	if more := (h.bytes+1<<20-1)>>20 - h.mib; more > 0 {
		if err := h.hold.Add(int(more)); err != nil {
			return err
		}
		h.mib += more
	}
	return nil
}

// take is like held.add, but returns an error for the client. The error says whether the context is
// too large by itself, or other contexts leave too little room.
func take(h *held, bytes int64, what string) error {
	err := h.add(bytes)
	var full *gate.FullError
	if errors.As(err, &full) && h.bytes > int64(full.Limit)<<20 {
		return invalid.Errorf("archive", "%s of the build context take more than %d MiB: leave files out in .dockerignore",
			what, full.Limit)
	}
	if err != nil {
		return fmt.Errorf("%s of the build contexts of all builds take all the room that they may: %w", what, ErrBusy)
	}
	return nil
}

// Close removes the content.
func (c *Context) Close() error {
	defer c.list.hold.Leave()
	defer c.contents.hold.Leave()
	return os.RemoveAll(c.dir)
}

// Store makes a build context from those entries of a client's archive whose names begin with
// prefix. It stops when ctx is done. The error is an *invalid.Error if the archive is at fault, and
// ErrBusy if other builds take the space.
func (b *Builder) Store(ctx context.Context, who string, in *treetar.Reader, prefix string) (*Context, error) {
	c, err := b.NewContext(who)
	if err == nil {
		if err = c.unpack(ctx, in, prefix, ""); err != nil {
			err = errors.Join(err, c.Close())
		}
	}
	return c, err
}

// NewContext returns an empty build context of a client.
func (b *Builder) NewContext(who string) (*Context, error) {
	dir, err := os.MkdirTemp(filepath.Join(b.cfg.Dir, "contexts"), "")
	if err != nil {
		return nil, fmt.Errorf("store a build context: %w", err)
	}
	return &Context{dir: dir, seen: make(map[string]int), left: maxContext,
		list: shareOf(b.lists, who), contents: shareOf(b.contents, who)}, nil
}

// Unpack adds the entries of an archive to the context, in a new directory. The archive may be
// compressed. Reading stops when ctx is done. The error is an *invalid.Error if the archive is at
// fault.
func (c *Context) Unpack(ctx context.Context, archive io.Reader, dir string) error {
	plain, err := decompress(bufio.NewReaderSize(archive, 64<<10))
	if err == nil && plain == nil {
		err = errors.New("it is no tar archive")
	}
	if err != nil {
		return &invalid.Error{Field: "archive", Reason: err.Error()}
	}
	return c.unpack(ctx, treetar.NewReader(c.plain(&readUntil{ctx, plain})), "", dir)
}

// plain() returns a reader for the decompressed content of an archive. The reader adds its bytes to
// a count for the whole build. Reading fails when this count is too large, because a short archive
// may decompress to any number of bytes.
func (c *Context) plain(archive io.Reader) io.Reader { return plainArchive{archive, &c.unpacked} }

type plainArchive struct {
	r     io.Reader
	total *atomic.Int64
}

// Read implements io.Reader.
func (a plainArchive) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	if a.total.Add(int64(n)) > maxUnpacked {
		return n, invalid.Errorf("archive", "the archives of the build have more than %d GiB when they are decompressed",
			maxUnpacked>>30)
	}
	return n, err
}

// readUntil is a reader that fails once its context is done.
type readUntil struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (r *readUntil) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// Files returns the entries of the context, sorted by their paths. The caller must not change them.
// After this call, nothing can be added to the context.
func (c *Context) Files() []plan.File {
	c.seen = nil
	slices.SortFunc(c.files, func(a, b plan.File) int { return strings.Compare(a.Path, b.Path) })
	return c.files
}

func (c *Context) unpack(ctx context.Context, in *treetar.Reader, prefix, dir string) error {
	before := len(c.files)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.Is(err, treetar.ErrHeaders) {
			return &invalid.Error{Field: "archive", Reason: err.Error()}
		}
		if err == nil {
			err = c.add(h, in, prefix, dir)
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
	}
	return c.complete(before)
}

// nameIn returns the path that an archive entry has in the context. The result is "" for the
// context's own directory.
func nameIn(name, prefix, dir string) (string, error) {
	rel, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return "", invalid.Errorf("archive", "entry %.200q: want a name that begins with %s", name, prefix)
	}
	if err := treetar.CheckName(rel); err != nil {
		return "", &invalid.Error{Field: "archive", Reason: err.Error()}
	}
	if slices.Contains(strings.Split(rel, "/"), "..") {
		return "", invalid.Errorf("archive", "entry %.200q: the name leads out of the context", name)
	}
	return path.Join(dir, path.Clean("/" + rel)[1:]), nil
}

// add adds an entry. A later entry replaces an earlier one with the same name, as it does when tar
// unpacks an archive.
func (c *Context) add(h *tar.Header, in io.Reader, prefix, dir string) error {
	name, err := nameIn(h.Name, prefix, dir)
	switch {
	case err != nil:
		return err
	case h.Typeflag == tar.TypeDir && h.Size != 0:
		return invalid.Errorf("archive", "entry %.200q: it is a directory, and has content", h.Name)
	case name == dir && h.Typeflag != tar.TypeDir:
		return invalid.Errorf("archive", "entry %.200q: it has the name of the context itself, and is no directory",
			h.Name)
	}
	if err := c.count(len(name) + len(h.Linkname)); err != nil || name == dir {
		return err
	}
	f := plan.File{Path: name, Mode: uint32(h.Mode) & 0o7777, ModTime: h.ModTime.Round(time.Second).Unix()}
	switch h.Typeflag {
	case tar.TypeDir:
		f.Kind = plan.KindDir
	case tar.TypeSymlink:
		if len(h.Linkname) >= unix.PathMax {
			return invalid.Errorf("archive", "entry %.200q: the target of the link has more than %d bytes", h.Name, unix.PathMax-1)
		}
		f.Kind, f.Mode = plan.KindLink, 0o777
		f.Link = strings.Clone(h.Linkname) // h.Linkname may be a part of a header of 1 MiB
	case tar.TypeReg:
		f.Kind, f.Size = plan.KindFile, h.Size
		if c.left -= h.Size; c.left < 0 {
			return invalid.Errorf("archive", "the build context has more than %d GiB: leave files out in .dockerignore",
				maxContext>>30)
		}
		if err := take(c.contents, h.Size, "the files"); err != nil {
			return err
		}
		if err := room(c.dir, h.Size); err != nil {
			return err
		}
		digest, err := c.keep(in, h.Size)
		if err != nil {
			return err
		}
		f.Digest = digest
	case tar.TypeLink: // a hard link, which has the content of an earlier entry
		to, err := nameIn(h.Linkname, prefix, dir)
		if err != nil {
			return err
		}
		at, ok := c.seen[to]
		if !ok || c.files[at].Kind != plan.KindFile {
			return invalid.Errorf("archive", "entry %.200q: it is a link to %.200q, which is no file before it", h.Name,
				h.Linkname)
		}
		f.Size, f.Digest, f.Mode, f.Kind = c.files[at].Size, c.files[at].Digest, c.files[at].Mode, plan.KindFile
	default:
		return invalid.Errorf("archive", "entry %.200q: want files, directories and links only", h.Name)
	}
	if at, ok := c.seen[name]; ok {
		c.files[at] = f
		return nil
	}
	return c.insert(f)
}

// count counts an entry, even if the entry replaces another one. The argument is the length of the
// entry's name plus the length of its link target, in bytes.
func (c *Context) count(bytes int) error {
	if c.names += bytes; c.names > maxNames {
		return invalid.Errorf("archive", "the names and links of the build context have more than %d MiB: leave files "+
			"out in .dockerignore", maxNames>>20)
	}
	return take(c.list, entrySize+int64(bytes), "the names")
}

// insert adds an entry to the list of files.
func (c *Context) insert(f plan.File) error {
	if len(c.files) >= maxEntries {
		return invalid.Errorf("archive", "the build context has more than %d files: leave some out in .dockerignore",
			maxEntries)
	}
	c.seen[f.Path] = len(c.files)
	c.files = append(c.files, f)
	return nil
}

// complete() adds the parent directories that are missing for the entries c.files[from:].
func (c *Context) complete(from int) error {
	for i := from; i < len(c.files); i++ {
		dir := path.Dir(c.files[i].Path)
		if at, ok := c.seen[dir]; ok && c.files[at].Kind != plan.KindDir {
			return invalid.Errorf("archive", "entry %.200q: it is below another that is no directory", c.files[i].Path)
		} else if ok || dir == "." {
			continue
		}
		if err := c.count(len(dir)); err != nil {
			return err
		}
		if err := c.insert(plan.File{Path: dir, Kind: plan.KindDir, Mode: 0o755}); err != nil {
			return err
		}
	}
	return nil
}

func room(dir string, size int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("ask for the room in %s: %w", dir, err)
	}
	if size > int64(st.Bavail)*st.Bsize-keepFree {
		return fmt.Errorf("files of builds: no room for %d MiB more: %w", size>>20, syscall.ENOSPC)
	}
	return nil
}

// roomEvery is how many bytes are written between two checks of the free disk space.
const roomEvery = 16 << 20

// keep stores content and returns its digest.
func (c *Context) keep(in io.Reader, size int64) (string, error) {
	f, err := os.CreateTemp(c.dir, ".*")
	if err != nil {
		return "", fmt.Errorf("store a build context: %w", err)
	}
	defer os.Remove(f.Name()) // no effect after the rename
	defer f.Close()
	h := sha256.New()
	for left := size; left > 0; left -= roomEvery {
		if err := room(c.dir, min(left, roomEvery)); err != nil { // other builds write concurrently
			return "", err
		}
		if _, err := io.CopyN(io.MultiWriter(f, h), in, min(left, roomEvery)); err != nil {
			return "", fmt.Errorf("store a build context: %w", err)
		}
	}
	digest := hex.EncodeToString(h.Sum(nil))
	if err := os.Rename(f.Name(), c.path(digest)); err != nil {
		return "", fmt.Errorf("store a build context: %w", err)
	}
	return digest, nil
}

func (c *Context) path(digest string) string { return filepath.Join(c.dir, digest) }

// pack writes the files of a source as an archive. The entries have the names that the files will
// have below the target, and belong to root.
func (c *Context) pack(w io.Writer, src *plan.Source) error {
	out := tar.NewWriter(w)
	for i := range src.Files {
		if err := c.packFile(out, &src.Files[i], src.Name(&src.Files[i])); err != nil {
			return err
		}
	}
	return out.Close()
}

func (c *Context) packFile(out *tar.Writer, f *plan.File, name string) error {
	h := &tar.Header{Name: name, Mode: int64(f.Mode), Size: f.Size, Typeflag: tar.TypeReg,
		ModTime: time.Unix(f.ModTime, 0)}
	switch f.Kind {
	case plan.KindDir:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case plan.KindLink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.Link
	}
	if err := out.WriteHeader(h); err != nil || f.Kind != plan.KindFile {
		return err
	}
	in, err := os.Open(c.path(f.Digest))
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = io.Copy(out, in)
	return err
}
