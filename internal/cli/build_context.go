package cli

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/build/dockerfile"
)

// readIgnore reads the exclusions of a build context: from DOCKERFILE.dockerignore beside the
// Dockerfile, or from the context's .dockerignore.
func readIgnore(context, file string) (ignore dockerfile.Ignore, err error) {
	for _, name := range []string{file + ".dockerignore", filepath.Join(context, ".dockerignore")} {
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return ignore, err
		}
		if ignore, err = dockerfile.ParseIgnore(text); err != nil {
			return ignore, fmt.Errorf("%s: %w", name, err)
		}
		return ignore, nil
	}
	return ignore, nil
}

// packContext writes a directory as a build context. It omits pipes, sockets and devices.
func packContext(out *tar.Writer, dir string, ignore dockerfile.Ignore) error {
	return filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil || rel == "." {
			return err
		}
		rel = filepath.ToSlash(rel)
		left, err := ignore.Out(rel)
		switch {
		case err != nil:
			return err
		case left && e.IsDir() && !ignore.Exceptions():
			return fs.SkipDir
		case left:
			return nil
		}
		return packOne(out, name, rel, e)
	})
}

func packOne(out *tar.Writer, name, rel string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: v1.BuildContext + rel, ModTime: info.ModTime(), Mode: int64(info.Mode().Perm())}
	switch mode := info.Mode(); {
	case mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		return out.WriteHeader(h)
	case mode.Type() == fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = os.Readlink(name); err != nil {
			return err
		}
		return out.WriteHeader(h)
	case !mode.IsRegular():
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if info.Mode()&fs.ModeSetuid != 0 {
		h.Mode |= 0o4000
	}
	if info.Mode()&fs.ModeSetgid != 0 {
		h.Mode |= 0o2000
	}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	if _, err := io.CopyN(out, f, h.Size); err != nil {
		return fmt.Errorf("%s: it became shorter while it was read: %w", name, err)
	}
	return nil
}
