package client

import (
	"archive/tar"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/ignore"
)

// BuildContext is a directory of files that a build may copy, with the build's Dockerfile. The zero
// BuildContext has no files.
//
//	files, err := client.OpenBuildContext("app", "")
//	defer files.Close()
//	req := client.BuildRequest{Tag: "app", Name: files.Name, Dockerfile: files.Dockerfile, Replace: true}
//	result, err := c.Build(ctx, req, files.Pack, func(e client.BuildEvent) error { … })
type BuildContext struct {
	Name       string // name of the Dockerfile, for errors
	Dockerfile string // text of the Dockerfile

	dir    string
	root   *os.Root
	ignore ignore.Patterns
}

// defaultDockerfile is the path of a Dockerfile below its context.
const defaultDockerfile = "Dockerfile"

// OpenBuildContext opens a directory as the context of a build and reads its Dockerfile and its
// .dockerignore. The path of the Dockerfile is given as dockerfile. A relative path begins at dir.
// An empty path means "Dockerfile", and "-" means that the caller has the text. A file
// NAME.dockerignore next to the Dockerfile NAME replaces the .dockerignore.
//
// The files below dir are not trusted. A symbolic link must not lead out of dir, and a pipe is
// refused. These checks do not apply to a Dockerfile outside dir, because the caller chose it.
func OpenBuildContext(dir, dockerfile string) (_ *BuildContext, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, wrong("context", "%w", err)
	}
	c := &BuildContext{dir: dir, root: root, Name: defaultDockerfile}
	defer func() {
		if err != nil {
			err = errors.Join(err, root.Close())
		}
	}()
	own := false // the Dockerfile has a .dockerignore of its own
	if dockerfile != "-" {
		if own, err = c.readDockerfile(cmp.Or(dockerfile, defaultDockerfile)); err != nil {
			return nil, err
		}
	}
	if !own {
		_, err = c.readIgnore(".dockerignore", true)
	}
	return c, err
}

// readDockerfile reads the Dockerfile NAME and, if it exists, NAME.dockerignore next to it. It also
// reports whether NAME.dockerignore exists.
func (c *BuildContext) readDockerfile(path string) (own bool, err error) {
	c.Name = path
	name, inside, err := c.place(path)
	if err != nil {
		return false, err
	}
	text, err := c.read(name, inside, v1.MaxDockerfile, true)
	if err != nil {
		return false, wrong("dockerfile", "%w", err)
	}
	c.Dockerfile = string(text)
	return c.readIgnore(name+".dockerignore", inside)
}

// Close closes the directory.
func (c *BuildContext) Close() error {
	if c.root == nil {
		return nil
	}
	return c.root.Close()
}

// place returns the path of a Dockerfile. It also reports whether the file is in the context. If it
// is, the path is relative to the context.
func (c *BuildContext) place(dockerfile string) (name string, inside bool, err error) {
	if !filepath.IsAbs(dockerfile) {
		dockerfile = filepath.Join(c.dir, dockerfile)
	}
	dir, err := filepath.Abs(c.dir)
	if err != nil {
		return "", false, err
	}
	if dockerfile, err = filepath.Abs(dockerfile); err != nil {
		return "", false, err
	}
	rel, err := filepath.Rel(dir, dockerfile)
	if err != nil || !filepath.IsLocal(rel) {
		return dockerfile, false, nil
	}
	return rel, true, nil
}

// maxIgnore bounds a .dockerignore, in bytes.
const maxIgnore = 1 << 20

// readIgnore reads a file with patterns of ignored files, and reports whether this file exists.
func (c *BuildContext) readIgnore(name string, inside bool) (bool, error) {
	text, err := c.read(name, inside, maxIgnore, false)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, wrong("context", "%w", err)
	}
	if c.ignore, err = parseIgnore(text); err != nil {
		return false, wrong("context", "%s: %w", c.shown(name), err)
	}
	return true, nil
}

// shown returns the full path of a context file, for errors.
func (c *BuildContext) shown(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(c.dir, name)
}

// read reads a file that becomes part of the request. If chosen is true, the caller has named the
// file. Such a file may be a pipe if it is outside the context.
func (c *BuildContext) read(name string, inside bool, most int64, chosen bool) ([]byte, error) {
	f, err := c.open(name, inside, chosen)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() && (inside || !chosen || info.IsDir()) {
		return nil, fmt.Errorf("%s: it is %s: want a file", c.shown(name), kindOf(info.Mode()))
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s has more than %d bytes", c.shown(name), most)
	}
	return text, err
}

func (c *BuildContext) open(name string, inside, chosen bool) (*os.File, error) {
	if !inside && chosen {
		return os.Open(name)
	}
	if !inside {
		return os.OpenFile(name, os.O_RDONLY|notWaiting, 0)
	}
	info, err := c.root.Lstat(name)
	if err != nil {
		return nil, c.named(err, name)
	}
	f, err := c.root.OpenFile(name, os.O_RDONLY|notWaiting, 0)
	if err != nil && info.Mode().Type() == fs.ModeSymlink {
		return nil, fmt.Errorf("%s: the link leads to no file of the build context: put the file itself there (%w)",
			c.shown(name), notThere(err))
	}
	return f, c.named(err, name)
}

// named replaces the relative name in an error of os.Root with the full path of the file.
func (c *BuildContext) named(err error, name string) error {
	var of *fs.PathError
	if !errors.As(err, &of) {
		return err
	}
	return &fs.PathError{Op: "open", Path: c.shown(name), Err: of.Err}
}

// notThere returns an error that has the text of err, but is not fs.ErrNotExist. A dangling link
// must not count as a missing .dockerignore.
func notThere(err error) error { return errors.New(err.Error()) }

// kindOf names the kind of a file that is not a regular file.
func kindOf(mode fs.FileMode) string {
	switch mode.Type() {
	case fs.ModeDir:
		return "a directory"
	case fs.ModeSymlink:
		return "a link"
	case fs.ModeNamedPipe:
		return "a pipe"
	case fs.ModeSocket:
		return "a socket"
	}
	return "a device"
}

// Pack writes the files of the context. Pass it to Client.Build as files. The order of the entries
// depends only on their names. Sockets are omitted. A pipe or a device is an error, because no
// build can copy such a file.
func (c *BuildContext) Pack(out *tar.Writer) error {
	if c.root == nil {
		return nil
	}
	p := packing{out: out, root: c.root, dir: c.dir}
	return fs.WalkDir(c.root.FS(), ".", func(rel string, e fs.DirEntry, err error) error {
		if err != nil || rel == "." {
			return err
		}
		switch left := c.ignore.Out(rel); {
		case left && e.IsDir() && !c.ignore.Exceptions():
			return fs.SkipDir
		case left && e.IsDir():
			p.omitted = append(p.above(rel), rel)
			return nil
		case left:
			return nil
		}
		for _, dir := range p.above(rel) { // these directories were omitted, but an entry below them is not
			if err := p.add(dir); err != nil {
				return err
			}
		}
		p.omitted = nil
		return p.add(rel)
	})
}

// packing is the state of Pack.
type packing struct {
	out     *tar.Writer
	root    *os.Root
	dir     string
	omitted []string // omitted directories, each inside the previous one

	entries      int
	bytes, names int64
}

// above(rel) returns the omitted directories that contain the path rel. The other omitted
// directories contain no later path either.
func (p *packing) above(rel string) []string {
	for n := len(p.omitted); n > 0; n-- {
		if below, ok := strings.CutPrefix(rel, p.omitted[n-1]); ok && below[0] == '/' {
			return p.omitted[:n]
		}
	}
	return nil
}

// count counts an entry and returns an error if the context exceeds the daemon's bounds.
func (p *packing) count(h *tar.Header) error {
	const leave = "leave files out in .dockerignore"
	p.entries++
	p.names += int64(len(h.Name) - len(v1.BuildContext) + len(h.Linkname))
	p.bytes += h.Size
	switch {
	case p.entries > v1.MaxBuildEntries:
		return wrong("context", "the build context has more than %d files: %s", v1.MaxBuildEntries, leave)
	case p.names > v1.MaxBuildNames:
		return wrong("context", "the build context has more than %d MiB of names and links: %s", v1.MaxBuildNames>>20, leave)
	case p.bytes > v1.MaxBuildContent:
		return wrong("context", "the build context has more than %d GiB: %s", v1.MaxBuildContent>>30, leave)
	}
	return nil
}

func (p *packing) header(h *tar.Header) error {
	if err := p.count(h); err != nil {
		return err
	}
	return p.out.WriteHeader(h)
}

// add writes one entry.
func (p *packing) add(rel string) error {
	info, err := p.root.Lstat(rel)
	if err != nil {
		return err
	}
	h := &tar.Header{Name: v1.BuildContext + rel, ModTime: info.ModTime(), Mode: int64(info.Mode().Perm())}
	switch mode := info.Mode(); {
	case mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		return p.header(h)
	case mode.Type() == fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = p.root.Readlink(rel); err != nil {
			return err
		}
		return p.header(h)
	case mode.Type() == fs.ModeSocket:
		return nil
	case !mode.IsRegular():
		return wrong("context", "%s: it is %s, and a build context has files, directories and links only: "+
			"name it in .dockerignore", filepath.Join(p.dir, rel), kindOf(mode))
	}
	return p.file(rel, info, h)
}

func (p *packing) file(rel string, info fs.FileInfo, h *tar.Header) error {
	f, err := openSame(p.root, rel, info)
	if err != nil {
		return wrong("context", "%w", err)
	}
	defer f.Close()
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if info.Mode()&fs.ModeSetuid != 0 {
		h.Mode |= 0o4000
	}
	if info.Mode()&fs.ModeSetgid != 0 {
		h.Mode |= 0o2000
	}
	if err := p.header(h); err != nil {
		return err
	}
	if _, err := io.CopyN(p.out, f, h.Size); err != nil {
		return wrong("context", "%s: it became shorter while it was read: %w", filepath.Join(p.dir, rel), err)
	}
	return nil
}

// openSame opens the file that info describes. If the name now belongs to another file, a link or a
// pipe, openSame returns an error and does not block.
func openSame(root *os.Root, rel string, info fs.FileInfo) (*os.File, error) {
	f, err := root.OpenFile(rel, os.O_RDONLY|notFollowing|notWaiting, 0)
	if err != nil {
		return nil, err
	}
	now, err := f.Stat()
	if err == nil && (!os.SameFile(info, now) || !now.Mode().IsRegular()) { // the inode number may be reused by a pipe
		err = fmt.Errorf("%s: it was replaced while the build context was read", rel)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
