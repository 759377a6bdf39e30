package store

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/vm"
)

type dirs struct{ root, ram, base string }

func newDirs(t testing.TB) dirs {
	t.Helper()
	d := dirs{filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "ram"), filepath.Join(t.TempDir(), "base")}
	if err := os.WriteFile(d.base, make([]byte, 8192), 0o400); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d dirs) open(t testing.TB) *Store {
	t.Helper()
	s, err := Open(Config{Root: d.root, RAM: d.ram})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		checkIndex(t, &s.index)
	})
	return s
}

// publish makes a snapshot of two pages. If the tag parent is not empty, the snapshot is based on
// the snapshot with this tag.
func publish(t testing.TB, s *Store, d dirs, tag, parent string) {
	t.Helper()
	g, err := s.Stage(tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := complete(t, s, d, g, parent); err != nil {
		t.Fatal(err)
	}
}

// complete writes the files of a snapshot for publish, and publishes it.
func complete(t testing.TB, s *Store, d dirs, g *Staging, parent string) (err error) {
	t.Helper()
	defer g.Discard()
	tag := g.tag
	for name, content := range map[string][]byte{
		snapshot.MemoryLayerFile: bytes.Repeat([]byte{1}, 2*vm.PageSize),
		snapshot.StateFile:       []byte("state of " + tag),
		"top":                    []byte("disk of " + tag),
	} {
		f, err := g.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(content); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	m := &snapshot.Manifest{
		Transient: tag == "transient",
		Machine:   snapshot.Machine{MemoryBytes: 1 << 20, VCPUs: 1, Template: "t"},
		Disk:      &snapshot.Disk{SizeBytes: 8192},
	}
	var lower []*os.File
	if parent == "" {
		base, err := os.Open(d.base)
		if err != nil {
			t.Fatal(err)
		}
		defer base.Close()
		if err := g.UseBase(base); err != nil {
			t.Fatal(err)
		}
	} else {
		lease, err := s.Acquire(parent)
		if err != nil {
			t.Fatal(err)
		}
		defer lease.Release()
		pm := lease.Manifest()
		m.Parent = &snapshot.Ref{ID: pm.ID, Tag: pm.Tag}
		m.Memory = append(m.Memory, pm.Memory...)
		m.Disk.Base = pm.Disk.Base
		m.Disk.Layers = append(m.Disk.Layers, pm.Disk.Layers...)
		lower = append(lower, lease.Disk()[1:]...)
	}
	extents := []vm.Extent{{Length: 2 * vm.PageSize, Layer: uint32(len(m.Memory))}}
	name := "top"
	if parent == "" {
		g.DurableFirst()
		name = snapshot.DiskLayerFile
		if err := os.Rename(g.Path("top"), g.Path(name)); err != nil {
			t.Fatal(err)
		}
	}
	top, err := os.Open(g.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	_, err = g.Publish(m, extents, append(lower, top))
	return err
}

func TestPublishedSnapshotSurvivesARestart(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "base", "")
	publish(t, s, d, "child", "base")
	s.Close()
	if err := os.RemoveAll(d.ram); err != nil { // simulates a reboot
		t.Fatal(err)
	}
	s = d.open(t)
	lease, err := s.Acquire("child")
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if len(lease.Layers()) != 2 || len(lease.Disk()) != 3 || len(lease.Extents()) != 1 {
		t.Errorf("%d layers, %d disk files, %d extents", len(lease.Layers()), len(lease.Disk()), len(lease.Extents()))
	}
	p := make([]byte, 4)
	if _, err := lease.Layers()[0].ReadAt(p, 4096); err != nil || p[0] != 1 {
		t.Errorf("layer 0: %v %v", p, err)
	}
	detail, err := s.Detail("child")
	if err != nil || strings.Join(detail.Ancestors, ",") != "base" || detail.Parent != "base" {
		t.Errorf("detail %+v, %v", detail, err)
	}
}

func TestOneOwner(t *testing.T) {
	d := newDirs(t)
	d.open(t)
	if _, err := Open(Config{Root: d.root, RAM: d.ram}); err == nil || !strings.Contains(err.Error(), "another daemon") {
		t.Errorf("second owner: %v", err)
	}
}

// The store refuses directories to which other users can write, because those users could replace
// layers.
func TestStoreWantsItsDirectoriesToItself(t *testing.T) {
	for name, option := range map[string]string{"state": "--state-dir", "ram": "--ram-dir"} {
		d := newDirs(t)
		path := map[string]string{"state": d.root, "ram": d.ram}[name]
		if err := errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, 0o777)); err != nil {
			t.Fatal(err)
		}
		s, err := Open(Config{Root: d.root, RAM: d.ram})
		if err == nil {
			s.Close()
			t.Fatalf("%s: a directory that all can write to was taken", name)
		}
		if !strings.Contains(err.Error(), option) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v: want %q and %s in it", err, option, path)
		}
	}
}

func TestCrashLeftoversAreRemoved(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "kept", "")
	g, err := s.Stage("half")
	if err != nil {
		t.Fatal(err)
	}
	f, err := g.Create(snapshot.MemoryLayerFile)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	s.Close() // without Discard, to simulate a crash
	grave := filepath.Join(d.root, "snapshots", deletedPrefix+"x")
	if err := os.Mkdir(grave, 0o700); err != nil {
		t.Fatal(err)
	}
	s = d.open(t)
	for _, dir := range []string{g.dir, s.layerDir(g.id), grave} {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is still there (%v)", dir, err)
		}
	}
	if list := s.List(); len(list) != 1 || list[0].Tag != "kept" {
		t.Errorf("list %+v", list)
	}
	publish(t, s, d, "half", "")
}

func TestTagsAreReserved(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	g, err := s.Stage("a")
	if err != nil {
		t.Fatal(err)
	}
	var exists *ExistsError
	if _, err := s.Stage("a"); !errors.As(err, &exists) || !exists.InFlight {
		t.Errorf("second staging: %v", err)
	}
	g.Discard()
	publish(t, s, d, "a", "")
	if _, err := s.Stage("a"); !errors.As(err, &exists) || exists.InFlight {
		t.Errorf("staging of a published tag: %v", err)
	}
	if _, err := s.Stage("../a"); err == nil {
		t.Error("traversing tag accepted")
	}
}

func TestDeleteRules(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "base", "")
	publish(t, s, d, "child", "base")
	var inUse *InUseError
	if _, err := s.Delete("base", DeleteSingle); !errors.As(err, &inUse) || inUse.Dependents[0] != "child" {
		t.Fatalf("delete with a dependent: %v", err)
	}
	lease, err := s.Acquire("child")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Delete("base", DeleteCascade); !errors.As(err, &inUse) || inUse.Leases != 1 {
		t.Fatalf("delete with a lease: %v", err)
	}
	lease.Release()
	lease.Release()
	want := []Deleted{{"child", s.byTag["child"].id()}, {"base", s.byTag["base"].id()}}
	gone, err := s.Delete("base", DeleteCascade)
	if err != nil || !slices.Equal(gone, want) || len(s.byTag)+len(s.byID) != 0 {
		t.Fatalf("cascade: %v, %v", gone, err)
	}
	var missing *NotFoundError
	if _, err := s.Delete("base", DeleteSingle); !errors.As(err, &missing) {
		t.Errorf("delete twice: %v", err)
	}
	for _, dir := range []string{s.snapshots(), s.ram} {
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("%s: %v left", dir, left)
		}
	}
}

// Every snapshot has its own links to all of its layers.
func TestForceLeavesAUsableChild(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "base", "")
	publish(t, s, d, "child", "base")
	publish(t, s, d, "grandchild", "child")
	if err := s.WaitFlushed(t.Context(), "grandchild"); err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"base", "child"} {
		if _, err := s.Delete(tag, DeleteForce); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	if err := os.RemoveAll(d.ram); err != nil {
		t.Fatal(err)
	}
	s = d.open(t)
	lease, err := s.Acquire("grandchild")
	if err != nil {
		t.Fatalf("acquire without the base: %v", err)
	}
	defer lease.Release()
	for i, want := range []string{"base", "child", "grandchild"} {
		p := make([]byte, 32)
		n, _ := lease.Disk()[i+1].ReadAt(p, 0)
		if string(p[:n]) != "disk of "+want {
			t.Errorf("disk layer %d is %q", i, p[:n])
		}
	}
	if err := s.Verify(t.Context(), "grandchild"); err != nil {
		t.Error(err)
	}
}

func TestDamageIsRefusedByName(t *testing.T) {
	for _, name := range []string{
		snapshot.ManifestFile, snapshot.MemoryMapFile, snapshot.MemoryLayerFile, snapshot.StateFile, snapshot.DiskLayerFile,
	} {
		t.Run(name, func(t *testing.T) {
			d := newDirs(t)
			s := d.open(t)
			publish(t, s, d, "a", "")
			path := s.file("a", name)
			s.Close()
			if err := os.RemoveAll(d.ram); err != nil {
				t.Fatal(err)
			}
			st, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, st.Size()-1); err != nil {
				t.Fatal(err)
			}
			s = d.open(t)
			var damaged *DamagedError
			if _, err := s.Acquire("a"); !errors.As(err, &damaged) || damaged.File != name || damaged.Tag != "a" {
				t.Errorf("acquire: %v", err)
			}
			if list := s.List(); len(list) != 1 {
				t.Errorf("a damaged snapshot is not listed: %+v", list)
			}
			if _, err := s.Delete("a", DeleteSingle); err != nil {
				t.Errorf("a damaged snapshot cannot be deleted: %v", err)
			}
		})
	}
}

func TestVerifyFindsAChangedByte(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "a", "")
	if err := s.seal(context.Background(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(context.Background(), "a"); err != nil {
		t.Fatal(err)
	}
	path := s.file("a", snapshot.MemoryLayerFile)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{9}, 100); err != nil {
		t.Fatal(err)
	}
	f.Close()
	var damaged *DamagedError
	if err := s.Verify(context.Background(), "a"); !errors.As(err, &damaged) || damaged.File != snapshot.MemoryLayerFile {
		t.Errorf("verify: %v", err)
	}
}
