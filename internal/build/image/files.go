package image

import (
	"archive/tar"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Bounds on the files of a recipe. A build keeps these files in memory.
const (
	maxRecipeFiles     = 20_000
	maxRecipeTreeBytes = 512 << 20
)

// readFiles reads the files and directories in a recipe's "files".
func readFiles(fsys fs.FS, files []File) ([]overlayFile, error) {
	c := collector{fsys: fsys, seen: make(map[string]byte)}
	for i, f := range files {
		if err := c.collect(f); err != nil {
			return nil, fmt.Errorf("files[%d]: %w", i, err)
		}
	}
	return c.out, nil
}

// overlayFile is a file put over the base.
type overlayFile struct {
	name string // relative path in the image
	typ  byte   // tar.TypeReg, tar.TypeDir or tar.TypeSymlink
	mode int64
	data []byte
	link string // target of a symbolic link
}

// collector gathers the files of a recipe.
type collector struct {
	fsys  fs.FS
	out   []overlayFile
	seen  map[string]byte // type by name
	bytes int64
}

func (c *collector) collect(f File) error {
	info, err := fs.Stat(c.fsys, f.Source)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if !info.IsDir() {
		if f.Target == "/" {
			return fmt.Errorf("target: %q is a directory and %q is not: name the file", f.Target, f.Source)
		}
		return c.file(f.Source, f.Target, f.Mode, info)
	}
	return fs.WalkDir(c.fsys, f.Source, func(source string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("source: %w", err)
		}
		target := path.Join(f.Target, strings.TrimPrefix(source, f.Source))
		if target == "/" {
			return nil
		}
		if err := CheckTarget(target); err != nil {
			return err
		}
		if d.IsDir() {
			return c.add(overlayFile{name: target, typ: tar.TypeDir, mode: 0o755})
		}
		if d.Type() == fs.ModeSymlink && source != f.Source {
			link, err := fs.ReadLink(c.fsys, source)
			if err != nil {
				return fmt.Errorf("source: %w", err)
			}
			return c.add(overlayFile{name: target, typ: tar.TypeSymlink, mode: 0o777, link: link})
		}
		info, err := d.Info()
		if err != nil {
			return fmt.Errorf("source: %w", err)
		}
		return c.file(source, target, f.Mode, info)
	})
}

// file adds a regular file. Without a mode in the recipe, the file is executable in the image if
// and only if the owner of the source file may execute it.
func (c *collector) file(source, target string, mode Mode, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("source: %s is neither a file, a directory nor a symbolic link", source)
	}
	data, err := readBounded(c.fsys, source, maxRecipeFileBytes)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if c.bytes += int64(len(data)); c.bytes > maxRecipeTreeBytes {
		return fmt.Errorf("source: the files of the recipe are larger than %d MiB together: copy them into a container image, "+
			"or fetch them in the warm-up", maxRecipeTreeBytes>>20)
	}
	if mode == 0 {
		mode = 0o644 | Mode(info.Mode()>>6)&1*0o111
	}
	return c.add(overlayFile{name: target, typ: tar.TypeReg, mode: int64(mode), data: data})
}

func (c *collector) add(o overlayFile) error {
	o.name = strings.TrimPrefix(o.name, "/")
	old, twice := c.seen[o.name]
	switch {
	case twice && (old != tar.TypeDir || o.typ != tar.TypeDir):
		return fmt.Errorf("target: %q appears twice", "/"+o.name)
	case len(c.out) >= maxRecipeFiles:
		return fmt.Errorf("source: the recipe has more than %d files", maxRecipeFiles)
	case !twice:
		c.seen[o.name] = o.typ
		c.out = append(c.out, o)
	}
	return nil
}

// CheckTarget returns an error for paths that are hidden in guests.
func CheckTarget(target string) error {
	if top, _, _ := strings.Cut(target[1:], "/"); slices.Contains([]string{"dev", "proc", "sys", "run", "tmp"}, top) {
		return fmt.Errorf("target: %q is hidden by a mount in the guest", target)
	}
	return nil
}
