package cli

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/forkd/forkd/internal/treetar"
)

// treeIn copies a local directory, or an archive from standard input, into the sandbox.
func (t transfer) treeIn(ctx context.Context, stdin io.Reader) error {
	if t.local == "-" {
		return t.cl.WriteTree(ctx, t.id, t.remote, stdin)
	}
	s, err := os.Stat(t.local)
	if err != nil {
		return err
	}
	if !s.IsDir() {
		return t.fileIn(ctx, stdin)
	}
	target, err := t.inTarget()
	if err != nil {
		return err
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(treetar.Pack(w, t.local)) }()
	err = t.cl.WriteTree(ctx, t.id, target, r)
	r.Close()
	if err != nil {
		return fmt.Errorf("copy %s: %s:%s may be incomplete: %w", t.local, t.id, target, err)
	}
	return nil
}

// treeOut copies a directory of the sandbox to a local directory, or to standard output as an
// archive.
func (t transfer) treeOut(ctx context.Context, stdout, notes io.Writer) error {
	if f, err := t.cl.StatFile(ctx, t.id, t.remote); err != nil {
		return err
	} else if f.Type != "directory" {
		return t.fileOut(ctx, stdout)
	}
	archive, err := t.cl.ReadTree(ctx, t.id, t.remote)
	if err != nil {
		return err
	}
	defer archive.Close()
	if t.local == "-" {
		_, err = io.Copy(stdout, archive)
		return err
	}
	target, err := t.outTarget()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(target, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(target)
	if err != nil {
		return err
	}
	defer root.Close()
	left := func(name string) { printf(notes, "forkd: %q is no file, directory or link: left out\n", name) }
	if err := treetar.Unpack(archive, treetar.Target{Root: root, Left: left}); err != nil {
		return fmt.Errorf("copy %s:%s: %s may be incomplete: %w", t.id, t.remote, target, err)
	}
	return nil
}
