package cli

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	v1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/build/dockerfile"
)

// readIgnore reads the exclusions of a build context: from DOCKERFILE.dockerignore beside the
// Dockerfile, or from the context's .dockerignore.
func readIgnore(context, file string) (ignore dockerfile.Ignore, err error) {
	for _, name := range []string{file + ".dockerignore", filepath.Join(context, ".dockerignore")} {
		text, err := readSmall(name, maxIgnore)
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

// maxIgnore bounds a .dockerignore, in bytes.
const maxIgnore = 1 << 20

// readSmall reads a file of at most so many bytes.
func readSmall(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s has more than %d bytes", name, most)
	}
	return text, err
}

// packContext writes a directory as a build context. Pipes, sockets and devices are left out. What is not
// below the directory is never read, whatever becomes of its links meanwhile.
func packContext(out *tar.Writer, dir string, ignore dockerfile.Ignore) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(rel string, e fs.DirEntry, err error) error {
		if err != nil || rel == "." {
			return err
		}
		left, err := ignore.Out(rel)
		switch {
		case err != nil:
			return err
		case left && e.IsDir() && !ignore.Exceptions():
			return fs.SkipDir
		case left:
			return nil
		}
		return packOne(out, root, rel)
	})
}

func packOne(out *tar.Writer, root *os.Root, rel string) error {
	info, err := root.Lstat(rel)
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
		if h.Linkname, err = root.Readlink(rel); err != nil {
			return err
		}
		return out.WriteHeader(h)
	case !mode.IsRegular():
		return nil
	}
	f, err := openSame(root, rel, info)
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
		return fmt.Errorf("%s: it became shorter while it was read: %w", rel, err)
	}
	return nil
}

// openSame opens the file that info is of. By now its name may be that of a link, or of a pipe, whose opening
// would wait.
func openSame(root *os.Root, rel string, info fs.FileInfo) (*os.File, error) {
	f, err := root.OpenFile(rel, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	now, err := f.Stat()
	if err == nil && !os.SameFile(info, now) {
		err = fmt.Errorf("%s: it was replaced while the build context was read", rel)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
