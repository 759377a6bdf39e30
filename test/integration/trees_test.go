package integration_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/treetar"
)

// testTrees uploads a directory into a sandbox and downloads it again, and receives an event for
// each file that arrives. With a real VM, it uses the guest's own disk, user and agent.
func testTrees(t *testing.T, d *daemon, id string) {
	from, to := t.TempDir(), t.TempDir()
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	if err := os.Mkdir(filepath.Join(from, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"sub/tool": []byte("#!/bin/sh\n"), "big": big} {
		if err := os.WriteFile(filepath.Join(from, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ctx := d.ctx(t, 2*quietLimit)
	if _, err := d.MakeDir(ctx, id, "/srv/watched"); err != nil {
		t.Fatal(err)
	}
	arrived := errors.New("arrived")
	err := d.WatchFiles(ctx, id, "/srv/watched", true, func(c client.FileChange) error {
		switch {
		case c.Type == "begun":
			var archive bytes.Buffer
			return errors.Join(treetar.Pack(&archive, from), d.WriteTree(ctx, id, "/srv/watched", &archive))
		case c.Type == "create" && c.Name == "big":
			return arrived
		}
		return nil
	})
	if !errors.Is(err, arrived) {
		t.Errorf("watch: %v", err)
	}
	list, err := d.ListFiles(ctx, id, "/srv/watched", 2)
	if err != nil || len(list) != 3 || list[0].Name != "big" || list[0].Size != int64(len(big)) ||
		list[2].Owner != "root" || list[2].Mode != 0o755 {
		t.Errorf("list: %+v, %v", list, err)
	}
	back, err := d.ReadTree(ctx, id, "/srv/watched")
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	root, err := os.OpenRoot(to)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := treetar.Unpack(back, treetar.Target{Root: root}); err != nil {
		t.Fatal(err)
	}
	if p, err := os.ReadFile(filepath.Join(to, "big")); err != nil || !bytes.Equal(p, big) {
		t.Errorf("%d bytes came back, %v", len(p), err)
	}
	if s, err := os.Stat(filepath.Join(to, "sub", "tool")); err != nil || s.Mode().Perm() != 0o755 {
		t.Errorf("tool: %v, %v", s, err)
	}
	if err := d.RemoveFile(ctx, id, "/srv/watched"); err != nil {
		t.Error(err)
	}
}
