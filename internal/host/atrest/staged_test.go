package atrest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// stage makes a snapshot whose files are all encrypted from the beginning. If from is empty, the
// snapshot is a parent; if not, it is a branch of the snapshot with that tag. Just before the
// publication, stage calls before(g). If that call has failed the test, stage publishes nothing.
func (w *world) stage(tag, from string, before func(g *store.Staging)) error {
	w.t.Helper()
	var l *store.Lease
	var err error
	if from != "" {
		if l, err = w.store.Acquire(from); err != nil {
			w.t.Fatal(err)
		}
		defer l.Release()
	}
	g, err := w.store.Stage(tag)
	if err != nil {
		w.t.Fatal(err)
	}
	defer g.Discard()
	if err := g.Encrypt(ctx, l, false, false); err != nil {
		return err
	}
	page := bytes.Repeat([]byte(secretOf(tag)+"."), vm.PageSize)[:2*vm.PageSize]
	for name, size := range map[string]int64{snapshot.MemoryLayerFile: 32 << 20, snapshot.StateFile: 1 << 16} {
		f, err := g.Create(name)
		if err == nil {
			err = f.Truncate(size)
		}
		if err == nil {
			_, err = f.WriteAt(page, 0)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			w.t.Fatal(err)
		}
	}
	path := filepath.Join(w.t.TempDir(), "top") // the sandbox's own disk, which is unencrypted
	if l == nil {
		path = g.Path(snapshot.DiskLayerFile) // the disk of a parent that is being baked
	}
	if err := os.WriteFile(path, page, 0o600); err != nil {
		w.t.Fatal(err)
	}
	top, err := os.Open(path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer top.Close()
	m := &snapshot.Manifest{Machine: snapshot.Machine{MemoryBytes: 64 << 20, VCPUs: 1, Template: "t"},
		Disk: &snapshot.Disk{SizeBytes: 8192}}
	var lower []*os.File
	if l != nil {
		p := l.Manifest()
		m = &snapshot.Manifest{Machine: p.Machine, Parent: &snapshot.Ref{ID: p.ID, Tag: from},
			Memory: slices.Clone(p.Memory), Branch: &snapshot.Branch{SandboxID: "sb", Mode: "diff"},
			Disk: &snapshot.Disk{SizeBytes: p.Disk.SizeBytes, Base: p.Disk.Base, Layers: slices.Clone(p.Disk.Layers)}}
		lower = l.Disk()[1:]
	} else {
		w.useBase(g)
	}
	if before(g); w.t.Failed() {
		return nil
	}
	extent := []vm.Extent{{GPA: 0, Length: 2 * vm.PageSize, Layer: uint32(len(m.Memory))}}
	_, err = g.Publish(m, extent, append(slices.Clone(lower), top))
	return err
}

// A snapshot that is encrypted while it is made has no unencrypted data on the disk, neither before
// nor after its publication. It inherits the layers of its parent in the form that they have in the
// parent.
func TestEncryptedFromTheBeginning(t *testing.T) {
	w := newWorld(t)
	w.make("parent", "")
	w.encrypt("parent", []string{"parent"}, nil)
	w.make("clear", "") // no family
	onDisk := func(tag string) {
		t.Helper()
		for _, path := range w.plain(tag) {
			if rel, err := filepath.Rel(w.state, path); err == nil && filepath.IsLocal(rel) {
				t.Errorf("%s is in clear in %s", tag, rel)
			}
		}
	}
	for _, c := range []struct{ tag, from string }{{"a", "parent"}, {"a1", "a"}, {"b", "clear"}, {"baked", ""}} {
		err := w.stage(c.tag, c.from, func(*store.Staging) { onDisk(c.tag) })
		if err != nil {
			t.Fatal(err)
		}
		if files := w.plain(c.tag); len(files) > 0 {
			t.Errorf("after the publication, %s is in clear in %v", c.tag, files)
		}
	}
	for range 2 {
		for _, tag := range []string{"a", "a1", "b", "baked"} {
			w.holds(tag)
			if err := w.store.Verify(ctx, tag); err != nil {
				t.Error(err)
			}
			if i, err := w.store.Info(tag); err != nil || !i.Encrypted || i.InRAM {
				t.Errorf("%s: %+v, %v", tag, i, err)
			}
			if files := w.plain(tag); len(files) > 0 {
				t.Errorf("%s is in clear in %v", tag, files)
			}
		}
		if len(w.plain("parent")) > 0 {
			t.Error("a branch has written layers of its parent in clear")
		}
		w.reopen()
	}
	if n := w.keys(); n != 5 {
		t.Errorf("%d keys, want one for each encrypted snapshot", n)
	}
	if _, err := w.store.Delete("baked", store.DeleteSingle); err != nil || w.keys() != 4 {
		t.Errorf("%d keys after the deletion of a parent, %v", w.keys(), err)
	}
	if _, err := w.store.Delete("a1", store.DeleteSingle); err != nil || w.keys() != 3 {
		t.Errorf("%d keys after a deletion, %v", w.keys(), err)
	}
	w.holds("a")
	if _, err := w.Decrypt(ctx, "parent"); err != nil {
		t.Error(err)
	}
	if w.holds("a"); len(w.plain("a")) == 0 || w.keys() != 1 {
		t.Errorf("after the decryption, %d keys are left", w.keys())
	}
	if r, err := w.Shred(ctx, "b"); err != nil || !slices.Equal(r.Tags, []string{"b"}) || w.keys() != 0 {
		t.Errorf("%+v, %v, %d keys", r, err, w.keys())
	}
	w.holds("clear")
}

// If a snapshot cannot be completed, or the daemon that makes it is killed, neither files nor keys
// are left.
func TestEncryptedAndNotCompleted(t *testing.T) {
	w := newWorld(t)
	w.make("parent", "")
	w.encrypt("parent", []string{"parent"}, nil)
	err := w.stage("failed", "parent", func(g *store.Staging) { os.Remove(g.Path(snapshot.StateFile)) })
	if err == nil || w.keys() != 1 {
		t.Errorf("%v, %d keys", err, w.keys())
	}
	err = w.stage("unbaked", "", func(g *store.Staging) { os.Remove(g.Path(snapshot.StateFile)) })
	if err == nil || w.keys() != 1 {
		t.Errorf("a parent: %v, %d keys", err, w.keys())
	}
	left := filepath.Join(t.TempDir(), "left")
	err = w.stage("killed", "parent", func(g *store.Staging) {
		if out, err := exec.Command("cp", "-a", w.state, left).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.store.Close(); err != nil {
		t.Fatal(err)
	}
	os.RemoveAll(w.state)
	w.state = left
	w.open()
	if n := w.keys(); n != 1 {
		t.Errorf("a killed daemon leaves %d keys", n)
	}
	if list := w.store.List(); len(list) != 1 || list[0].Tag != "parent" {
		t.Errorf("%+v", list)
	}
	w.holds("parent")
}

// If a daemon is killed after it has written a whole snapshot and before it has moved the snapshot
// to its directory, the next daemon has the complete snapshot.
func TestEncryptedAndKilledBeforeTheMove(t *testing.T) {
	w := newWorld(t)
	w.make("parent", "")
	w.encrypt("parent", []string{"parent"}, nil)
	if err := w.stage("a", "parent", func(*store.Staging) {}); err != nil {
		t.Fatal(err)
	}
	d, err := w.store.Detail("a")
	if err != nil {
		t.Fatal(err)
	}
	for _, whole := range []bool{true, false} {
		if err := w.store.Close(); err != nil {
			t.Fatal(err)
		}
		staged := filepath.Join(w.state, "staging", d.ID)
		if err := os.Rename(filepath.Join(w.state, "snapshots", "a"), staged); err != nil {
			t.Fatal(err)
		}
		if whole {
			if err := os.WriteFile(filepath.Join(staged, ".whole"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w.open()
		if !whole {
			break
		}
		if err := w.store.WaitFlushed(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		w.holds("a")
		if files := w.plain("a"); len(files) > 0 {
			t.Errorf("it is in clear in %v", files)
		}
	}
	if _, err := w.store.Info("a"); err == nil || w.keys() != 1 {
		t.Errorf("an incomplete snapshot: %v, %d keys", err, w.keys())
	}
}

// The test makes the directories that a daemon leaves if it is killed at two points: while a
// complete snapshot is not yet in its directory, and while the parent is being deleted. The
// snapshot keeps the key of the layers that it inherits from the parent.
func TestKeysOfAStagedSnapshot(t *testing.T) {
	w := newWorld(t)
	w.make("parent", "")
	w.encrypt("parent", []string{"parent"}, nil)
	if err := w.stage("a", "parent", func(*store.Staging) {}); err != nil {
		t.Fatal(err)
	}
	d, err := w.store.Detail("a")
	if err == nil {
		err = w.store.Close()
	}
	dir, staged := filepath.Join(w.state, "snapshots"), filepath.Join(w.state, "staging", d.ID)
	err = errors.Join(err, os.Rename(filepath.Join(dir, "a"), staged),
		os.WriteFile(filepath.Join(staged, ".whole"), nil, 0o600),
		os.Rename(filepath.Join(dir, "parent"), filepath.Join(dir, ".deleted-x")))
	if err != nil {
		t.Fatal(err)
	}
	w.open()
	if n := w.keys(); n != 2 {
		t.Errorf("%d keys are left, want that of the parent and that of the snapshot", n)
	}
	if err := w.store.WaitFlushed(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	w.holds("a")
	if _, err := w.store.Delete("a", store.DeleteForce); err != nil || w.keys() != 0 {
		t.Errorf("after its deletion, %d keys are left: %v", w.keys(), err)
	}
}
