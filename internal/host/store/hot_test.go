package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// If the flush of a snapshot fails, the snapshot can be used while its layer is in RAM, and its
// Info shows the reason. When the store starts again, it flushes the snapshot.
func TestFailedFlush(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "base", "")
	obstacle := filepath.Join(s.dir("child"), "x") // the flush cannot replace a directory that is not empty
	if err := os.MkdirAll(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	publish(t, s, d, "child", "base")
	if err := s.WaitFlushed(t.Context(), "child"); err == nil {
		t.Fatal("flushed over an obstacle")
	}
	detail, err := s.Detail("child")
	if err != nil || !detail.InRAM || detail.FlushErr == "" {
		t.Errorf("detail %+v, %v", detail.Info, err)
	}
	lease, err := s.Acquire("child")
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	s.Close()
	if err := os.RemoveAll(filepath.Dir(obstacle)); err != nil {
		t.Fatal(err)
	}
	s = d.open(t)
	if err := s.WaitFlushed(t.Context(), "child"); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), "child"); err != nil {
		t.Error(err)
	}
}

// If RAM is short, an inherited layer may be only on disk. If the snapshot that the layer came from
// is deleted, the layer stays as long as an unflushed snapshot needs it.
func TestUnflushedSnapshotKeepsWhatItInherits(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "base", "")
	publish(t, s, d, "other", "")
	base, err := s.Detail("base")
	if err != nil {
		t.Fatal(err)
	}
	other := s.byTag["other"] // keeps the flusher busy
	other.flushed = make(chan struct{})
	other.flushMu.Lock()
	s.flusher.Add(other)
	publish(t, s, d, "child", "base")
	publish(t, s, d, "grandchild", "child")
	if err := os.RemoveAll(s.layerDir(base.ID)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Delete("base", DeleteForce); err != nil {
		t.Fatal(err)
	}
	other.flushMu.Unlock()
	for _, tag := range []string{"child", "grandchild"} {
		if err := s.WaitFlushed(t.Context(), tag); err != nil {
			t.Fatal(err)
		}
		if err := s.Verify(t.Context(), tag); err != nil {
			t.Error(err)
		}
	}
}

// A failed flush is tried again after a deletion, and when the store is closed.
func TestFlushIsTriedAgain(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "base", "")
	publish(t, s, d, "other", "base")
	for _, tag := range []string{"first", "second"} {
		obstacle := filepath.Join(s.dir(tag), "x")
		if err := os.MkdirAll(obstacle, 0o700); err != nil {
			t.Fatal(err)
		}
		publish(t, s, d, tag, "base")
		if err := s.WaitFlushed(t.Context(), tag); err == nil {
			t.Fatal("flushed over an obstacle")
		}
		if tag == "second" {
			break
		}
		if err := os.RemoveAll(filepath.Dir(obstacle)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Delete("other", DeleteSingle); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); s.WaitFlushed(t.Context(), tag) != nil; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("it was not tried again")
			}
		}
		if detail, err := s.Detail(tag); err != nil || detail.InRAM || detail.FlushErr != "" {
			t.Errorf("%+v, %v", detail.Info, err)
		}
	}
	if err := os.RemoveAll(s.dir("second")); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := os.Stat(s.file("second", snapshot.ManifestFile)); err != nil {
		t.Errorf("closed without another attempt: %v", err)
	}
}

// If a snapshot was not flushed and its layer in RAM is gone, the snapshot is lost. The next store
// lists it as failed.
func TestUnflushedSnapshotIsLostWithRAM(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "base", "")
	obstacle := filepath.Join(s.dir("child"), "x")
	if err := os.MkdirAll(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	publish(t, s, d, "child", "base")
	s.Close()
	// Only the move to the directory has failed: the layer is already on disk.
	layers, err := filepath.Glob(filepath.Join(s.staging(), "*", snapshot.MemoryLayerFile))
	if err != nil || len(layers) != 1 {
		t.Fatalf("layers on disk: %q, %v", layers, err)
	}
	if err := errors.Join(os.RemoveAll(filepath.Dir(obstacle)), os.RemoveAll(d.ram), os.Remove(layers[0])); err != nil {
		t.Fatal(err)
	}
	s = d.open(t)
	list := s.List()
	if len(list) != 2 || list[0].Tag != "base" || list[0].Damage != "" || list[1].Tag != "child" || list[1].Damage == "" {
		t.Errorf("%+v", list)
	}
	var damaged *DamagedError
	if _, err := s.Acquire("child"); !errors.As(err, &damaged) {
		t.Errorf("acquire: %v", err)
	}
	if _, err := s.Delete("child", DeleteSingle); err != nil {
		t.Errorf("delete what is lost: %v", err)
	}
	if left, _ := os.ReadDir(s.staging()); len(left) != 0 {
		t.Errorf("staging: %v left", left)
	}
}

func TestWritingTagIsListedAndRefused(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	g, err := s.Stage("a")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Discard()
	if list := s.List(); len(list) != 1 || s.Count() != 1 || !list[0].Writing {
		t.Errorf("%+v", list)
	}
	var exists *ExistsError
	if _, err := s.Acquire("a"); !errors.As(err, &exists) {
		t.Errorf("acquire: %v", err)
	}
	if _, err := s.Delete("a", DeleteForce); !errors.As(err, &exists) {
		t.Errorf("delete: %v", err)
	}
}

// A transient snapshot is deleted when its last lease or pin ends. Cool drops the layers of a
// pinned snapshot from RAM.
func TestTransient(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	// The directory for layers in RAM is on the disk here. If the disk is nearly full, the flusher
	// cools layers.
	s.ramRoom = func() (free, all uint64, err error) { return 1, 1, nil }
	publish(t, s, d, "base", "")
	publish(t, s, d, "transient", "base")
	if err := s.WaitFlushed(t.Context(), "transient"); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	id := s.byTag["transient"].manifest.ID
	s.mu.Unlock()
	lease, err := s.Acquire("transient")
	if err != nil {
		t.Fatal(err)
	}
	unpin, err := s.Pin("transient")
	if err != nil {
		t.Fatal(err)
	}
	s.Cool("transient")
	if _, err := os.Stat(s.ramLayer(id)); err != nil {
		t.Errorf("a leased layer was cooled: %v", err)
	}
	lease.Release()
	s.Cool("transient")
	if _, err := os.Stat(s.ramLayer(id)); !os.IsNotExist(err) {
		t.Errorf("a pinned layer is still in RAM: %v", err)
	}
	var inUse *InUseError
	if _, err := s.Delete("base", DeleteSingle); !errors.As(err, &inUse) || len(inUse.Dependents) > 0 ||
		inUse.Leases != 1 {
		t.Errorf("deletion of what a sandbox is suspended on: %v", err)
	}
	if lease, err = s.Acquire("transient"); err != nil {
		t.Fatalf("after cooling: %v", err)
	}
	lease.Release()
	unpin()
	s.drops.Wait()
	if _, err := s.Acquire("transient"); err == nil {
		t.Error("nobody needs it and it is still there")
	}
	if _, err := os.Stat(filepath.Join(s.snapshots(), "transient", snapshot.ManifestFile)); !os.IsNotExist(err) {
		t.Error(err)
	}
}

// Layers are found even while a flush moves their snapshot to another directory.
func TestLayersAreFoundWhileTheyMove(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "base", "")
	if err := s.WaitFlushed(t.Context(), "base"); err != nil {
		t.Fatal(err)
	}
	base := s.byTag["base"]
	child := &snapshot.Manifest{ID: snapshot.NewID(), Parent: &snapshot.Ref{ID: base.manifest.ID}}
	moved := make(chan error)
	go func() {
		var err error
		for i := range 500 {
			base.tag = []string{"there", "base"}[i%2]
			err = errors.Join(err, s.moveIn(base))
		}
		moved <- err
	}()
	for i := 0; ; i++ {
		dir := t.TempDir()
		if found, err := s.linkLayer(child, "", base.manifest.ID, dir); !found || err != nil {
			t.Errorf("link %d: %t, %v", i, found, err)
		}
		select {
		case err := <-moved:
			if err != nil || i == 0 {
				t.Errorf("%d links, %v", i, err)
			}
			return
		default:
		}
	}
}

// A snapshot that replaces another snapshot appears under the tag when it is complete. Until then
// the old snapshot stays. If a sandbox uses the old snapshot, the old snapshot is not replaced.
func TestStageOver(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "base", "")
	publish(t, s, d, "a", "base")
	publish(t, s, d, "child", "a")
	idOf := func() string {
		t.Helper()
		d, err := s.Detail("a")
		if err != nil {
			t.Fatal(err)
		}
		return d.ID
	}
	old := idOf()
	over := func() *Staging {
		t.Helper()
		g, err := s.StageOver("a")
		if list := s.List(); len(list) == 0 || !list[0].Replacing {
			t.Errorf("the list does not show that it is being replaced: %+v", list)
		}
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	g := over()
	if n := len(s.List()); n != 3 || s.Count() != n || idOf() != old {
		t.Errorf("%d snapshots while one is replaced, and %s under its tag, not %s", n, idOf(), old)
	}
	lease, err := s.Acquire("a")
	if err != nil {
		t.Fatal(err)
	}
	var inUse *InUseError
	if err := complete(t, s, d, g, "base"); !errors.As(err, &inUse) || idOf() != old {
		t.Errorf("replacing what was leased meanwhile: %v", err)
	}
	if _, err := s.StageOver("a"); !errors.As(err, &inUse) {
		t.Errorf("beginning to replace what is leased: %v", err)
	}
	lease.Release()
	g = over()
	if err := complete(t, s, d, g, "base"); err != nil || idOf() != g.ID() {
		t.Errorf("replacing: %v", err)
	}
	g = over()
	if _, err := s.Delete("a", DeleteForce); err != nil {
		t.Fatal(err)
	}
	if err := complete(t, s, d, g, "base"); err != nil || idOf() != g.ID() {
		t.Errorf("replacing what went meanwhile: %v", err)
	}
	if err := s.WaitFlushed(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if s = d.open(t); idOf() != g.ID() || len(s.List()) != 3 {
		t.Errorf("after a restart: %+v", s.List())
	}
}

// A new snapshot is on disk before the snapshot that it replaces is deleted. So the old or the new
// snapshot survives a power failure.
func TestStageOverAndPowerFailure(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "base", "")
	publish(t, s, d, "a", "base")
	publish(t, s, d, "other", "")
	other := s.byTag["other"] // keeps the flusher busy
	other.flushed = make(chan struct{})
	other.flushMu.Lock()
	s.flusher.Add(other)
	g, err := s.StageOver("a")
	if err != nil {
		t.Fatal(err)
	}
	if err := complete(t, s, d, g, "base"); err != nil {
		t.Fatal(err)
	}
	obstacle := filepath.Join(s.dir("a"), "x")
	layers, err := filepath.Glob(filepath.Join(s.staging(), g.ID(), snapshot.MemoryLayerFile))
	if err != nil || len(layers) != 1 {
		t.Errorf("its memory on disk: %q, %v", layers, err)
	}
	if err := os.MkdirAll(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	other.flushMu.Unlock()
	s.Close()
	if err := errors.Join(os.RemoveAll(filepath.Dir(obstacle)), os.RemoveAll(d.ram)); err != nil {
		t.Fatal(err)
	}
	s = d.open(t)
	if now, err := s.Detail("a"); err != nil || now.ID != g.ID() || now.Damage != "" {
		t.Errorf("after a power failure: %+v, %v", now.Info, err)
	}
	if err := s.Verify(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}
