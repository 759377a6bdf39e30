package cli

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/forkd/forkd/client"
)

// Directories go to and from a sandbox as tar archives, which the program tar packs and unpacks
// there.
const (
	treeTimeoutSecs = 3600             // for tar in the sandbox
	treeCleanup     = 10 * time.Second // for the removal of the archive there
)

// dirIn copies a local directory: its archive is uploaded into the target, so that it lies where
// the files will, and unpacked there.
func (t transfer) dirIn(ctx context.Context) error {
	target, err := t.inTarget()
	if err != nil {
		return err
	}
	if s, err := os.Stat(t.local); err != nil {
		return err
	} else if !s.IsDir() {
		return fmt.Errorf("copy %s: it is no directory: use cp without -r", t.local)
	}
	archive := strings.TrimRight(target, "/") + "/.forkd-cp-" + rand.Text() + ".tar"
	r, w := io.Pipe()
	go func() { w.CloseWithError(packTree(w, t.local)) }()
	err = t.cl.WriteFile(ctx, t.id, archive, r)
	r.Close()
	if err != nil {
		return fmt.Errorf("copy %s: %w", t.local, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), treeCleanup)
		defer cancel()
		t.cl.Exec(ctx, t.id, client.ExecRequest{Args: []string{"rm", "-f", archive}})
	}()
	var said strings.Builder
	end, err := t.cl.ExecStream(ctx, t.id, client.ExecRequest{
		Args: []string{"tar", "-x", "-C", target, "-f", archive}, TimeoutSecs: treeTimeoutSecs,
	}, io.Discard, &said)
	return t.tarError("unpack", target, end, said.String(), err)
}

// dirOut copies a directory of the sandbox.
func (t transfer) dirOut(ctx context.Context, notes io.Writer) error {
	target := t.outTarget()
	if err := os.MkdirAll(target, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(target)
	if err != nil {
		return err
	}
	defer root.Close()
	r, w := io.Pipe()
	unpacked := make(chan error, 1)
	go func() {
		err := unpackTree(r, root, notes)
		r.CloseWithError(err)
		unpacked <- err
	}()
	var said strings.Builder
	end, err := t.cl.ExecStream(ctx, t.id, client.ExecRequest{
		Args: []string{"tar", "-c", "-C", t.remote, "-f", "-", "."}, TimeoutSecs: treeTimeoutSecs,
	}, w, &said)
	if err = t.tarError("pack", t.remote, end, said.String(), err); err != nil {
		w.CloseWithError(err)
	} else {
		w.Close()
	}
	if failed := <-unpacked; failed != nil {
		err = failed // the cause, where both failed
	}
	if err != nil {
		return fmt.Errorf("copy %s:%s: %s may be incomplete: %w", t.id, t.remote, target, err)
	}
	return nil
}

// tarError says how tar failed in the sandbox, if it did.
func (t transfer) tarError(verb, dir string, end client.ExecEnd, said string, err error) error {
	switch {
	case err != nil:
		return err
	case end.ExitCode == 127:
		return fmt.Errorf("%s %s: there is no program tar in the sandbox, which copies of directories need", verb, dir)
	case end.ExitCode != 0:
		said = strings.TrimSpace(said + "\n" + end.Error)
		return fmt.Errorf("%s %s in the sandbox: tar exited with code %d: %s", verb, dir, end.ExitCode, said[:min(len(said), 1000)])
	}
	return nil
}

// packTree writes what is in dir as an archive. All of it belongs to root.
func packTree(w io.Writer, dir string) error {
	out := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil || rel == "." {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		link := ""
		switch info.Mode().Type() {
		case 0, fs.ModeDir:
		case fs.ModeSymlink:
			if link, err = os.Readlink(name); err != nil {
				return err
			}
		default:
			return nil
		}
		h, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		h.Name, h.Uid, h.Gid, h.Uname, h.Gname = filepath.ToSlash(rel), 0, 0, "", ""
		if info.IsDir() {
			h.Name += "/"
		}
		if err := out.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.CopyN(out, f, h.Size)
		return err
	})
	return errors.Join(err, out.Close())
}

// unpackTree makes the files of an archive, which a guest has written, beneath root. Nothing of it
// leads out of root; a symbolic link may point there, but nothing is written by way of it.
func unpackTree(r io.Reader, root *os.Root, notes io.Writer) error {
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, r) // what fills the archive's last block
			return err
		}
		if err != nil {
			return err
		}
		if err := unpackEntry(root, h, in, notes); err != nil {
			return err
		}
	}
}

func unpackEntry(root *os.Root, h *tar.Header, content io.Reader, notes io.Writer) error {
	name, mode := filepath.Clean(h.Name), h.FileInfo().Mode().Perm()
	if name == "." {
		return nil
	}
	if h.Typeflag == tar.TypeDir {
		return root.MkdirAll(name, mode|0o700)
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeSymlink, tar.TypeLink:
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		return errors.Join(err, f.Close())
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		return root.Link(filepath.Clean(h.Linkname), name)
	}
	fmt.Fprintf(notes, "forkd: %q is no file, directory or link: left out\n", h.Name)
	return nil
}
