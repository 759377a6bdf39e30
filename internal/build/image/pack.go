package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
)

// Text returns the text of the recipe.
func (r *Recipe) Text() (string, error) {
	if len(r.text) > 0 {
		return string(r.text), nil
	}
	text, err := json.Marshal(map[string]any{"name": r.Name, "base": r.Base, "user": r.User, "memory_mib": r.MemoryMiB,
		"vcpus": r.VCPUs, "disk_mib": r.DiskMiB}) // JSON is valid YAML; a recipe without a text has no other fields
	return string(text), err
}

// WithoutFiles returns a copy of the recipe without its files. A daemon that builds the recipe
// boots from the image of this copy, and copies the files itself.
func (r *Recipe) WithoutFiles() *Recipe {
	c := *r
	c.Files, c.files = nil, nil
	return &c
}

// Pack adds the files that the recipe names to the archive out. A file's name in the archive is its
// name in the recipe's directory, after the given prefix.
func (r *Recipe) Pack(out *tar.Writer, prefix string) error {
	p := packer{fsys: r.fsys, out: out, prefix: prefix, named: make(map[string]bool), seen: make(map[string]bool)}
	for _, f := range r.Files {
		p.named[f.Source] = true
	}
	for i, f := range r.Files {
		if err := p.tree(f.Source); err != nil {
			return fmt.Errorf("files[%d]: source: %w", i, err)
		}
	}
	return nil
}

// packer writes files to an archive, each once.
type packer struct {
	fsys   fs.FS
	out    *tar.Writer
	prefix string
	named  map[string]bool // files that the recipe names; each is packed by its own call of tree, which follows links
	seen   map[string]bool
}

// tree packs a file, or a directory with all its content. If source is a symbolic link, tree
// follows the link, but it packs links inside a directory as links.
func (p *packer) tree(source string) error {
	return fs.WalkDir(p.fsys, source, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case p.seen[name], p.named[name] && name != source && !d.IsDir():
			return nil
		}
		p.seen[name] = true
		if d.Type() == fs.ModeSymlink && name != source {
			link, err := fs.ReadLink(p.fsys, name)
			if err != nil {
				return err
			}
			return p.out.WriteHeader(&tar.Header{Name: p.prefix + name, Typeflag: tar.TypeSymlink, Linkname: link, Mode: 0o777})
		}
		if d.IsDir() {
			return p.out.WriteHeader(&tar.Header{Name: p.prefix + name + "/", Typeflag: tar.TypeDir, Mode: 0o755})
		}
		return p.file(name)
	})
}

func (p *packer) file(name string) error {
	f, err := p.fsys.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is neither a file, a directory nor a symbolic link", name)
	}
	err = p.out.WriteHeader(&tar.Header{Name: p.prefix + name, Typeflag: tar.TypeReg, Mode: int64(info.Mode().Perm()),
		Size: info.Size()})
	if err == nil {
		_, err = io.CopyN(p.out, f, info.Size())
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s: %w: another program has shortened it", name, io.ErrUnexpectedEOF)
	}
	return err
}

// Has reports whether the cache has the image of r. It does not verify the content of the image.
func Has(ctx context.Context, cacheDir string, r *Recipe) bool {
	c, err := resolve(ctx, r, nil)
	if err != nil {
		return false
	}
	_, err = Open(filepath.Join(imagesDir(cacheDir), cacheKey(r, c.digest)))
	return err == nil
}
