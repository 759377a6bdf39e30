package mounts

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/volume"
	"github.com/forkd/forkd/internal/proto/vm"
)

func TestErrorsNameTheField(t *testing.T) {
	many := make([]Mount, vm.MaxVolumeSlots+1)
	for _, c := range []struct {
		field string
		n     int
		list  []Mount
	}{
		{"volumes", 1, many},
		{"volumes[0].name", 1, []Mount{{Path: "/a"}}},
		{"volumes[0].name", 1, []Mount{{Name: "../a", Path: "/a"}}},
		{"volumes[0].path", 1, []Mount{{Name: "a"}}},
		{"volumes[0].path", 1, []Mount{{Name: "a", Path: "a"}}},
		{"volumes[0].path", 1, []Mount{{Name: "a", Path: "/a/../etc"}}},
		{"volumes[0].path", 1, []Mount{{Name: "a", Path: "/proc/a"}}},
		{"volumes[0].mode", 1, []Mount{{Name: "a", Path: "/a", Mode: "rw"}}},
		{"volumes[0].mode", 2, []Mount{{Name: "a", Path: "/a"}}},
		{"volumes[1].name", 1, []Mount{{Name: "a", Path: "/a"}, {Name: "a", Path: "/b", Mode: "ro"}}},
		{"volumes[1].path", 1, []Mount{{Name: "a", Path: "/a"}, {Name: "b", Path: "/a"}}},
		{"volumes[1].path", 1, []Mount{{Name: "a", Path: "/a"}, {Name: "b", Path: "/a/b"}}},
		{"volumes[1].path", 1, []Mount{{Name: "a", Path: "/a/b"}, {Name: "b", Path: "/a"}}},
	} {
		var wrong *invalid.Error
		if err := Check(c.list, c.n); !errors.As(err, &wrong) || wrong.Field != c.field {
			t.Errorf("%+v for %d: %v, want the field %s", c.list, c.n, err, c.field)
		}
	}
	for n, list := range map[int][]Mount{
		1: {{Name: "a", Path: "/a"}, {Name: "b", Path: "/ab"}, {Name: "c", Path: "/srv/c d", Mode: "copy"}},
		9: {{Name: "a", Path: "/a", Mode: "ro"}, {Name: "b", Path: "/b", Mode: "copy"}},
	} {
		if err := Check(list, n); err != nil {
			t.Error(err)
		}
	}
}

// newStore returns a store with the volume "a".
func newStore(t *testing.T) *volume.Store {
	t.Helper()
	st, err := volume.Open(volume.Config{Dir: filepath.Join(t.TempDir(), "volumes"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Create(volume.Request{Name: "a", Owner: "local", SizeMiB: 16}); err != nil {
		t.Fatal(err)
	}
	return st
}

// bare is a snapshot without volumes.
type bare struct{}

func (bare) Manifest() *snapshot.Manifest { return parent(2) }
func (bare) Volumes() [][]*os.File        { return nil }

// openAll opens the disks of a new sandbox.
func openAll(t *testing.T, st *volume.Store, sandbox, dir string, list []Mount) (*Disks, error) {
	t.Helper()
	set := &Set{Store: st, Sandbox: sandbox, Dir: dir}
	return set.OpenFirst(t.Context(), list, bare{}, func() {}, gate.New(1))
}

// write writes a byte at an offset of a volume, as a sandbox does.
func write(t *testing.T, st *volume.Store, sandbox string, at int64) {
	t.Helper()
	d, err := openAll(t, st, sandbox, "", []Mount{{Name: "a", Path: "/a"}})
	if err != nil {
		t.Fatal(err)
	}
	files := d.Volumes[0].Files
	setCluster(t, files[len(files)-1], 16<<20, at)
	d.Close()
	st.ReleaseAll(sandbox)
}

// setCluster adds the cluster at an offset to a layer of a disk of the given size.
func setCluster(t *testing.T, layer *os.File, size uint64, at int64) {
	t.Helper()
	bitmap, _, _ := disklayer.Layout(size)
	cluster := at / disklayer.ClusterSize
	_, err := layer.WriteAt([]byte{1}, at)
	_, err2 := layer.WriteAt([]byte{1 << (cluster % 8)}, int64(bitmap)+cluster/8)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
}

func parent(slots uint32) *snapshot.Manifest {
	return &snapshot.Manifest{Tag: "p", Machine: snapshot.Machine{VolumeSlots: slots}}
}

// Admit refuses volumes that do not exist, volumes without a slot, and volumes with a writer. It merges
// the layers of a volume that has too many of them.
func TestAdmit(t *testing.T) {
	st := newStore(t)
	list := []Mount{{Name: "a", Path: "/a"}}
	var slots *SlotsError
	if err := Admit(t.Context(), st, list, parent(0)); !errors.As(err, &slots) || slots.Tag != "p" || slots.Wanted != 1 {
		t.Errorf("no slot: %v", err)
	}
	for _, st := range []*volume.Store{st, nil} {
		for slots := range uint32(2) { // the slots do not matter
			if err := Admit(t.Context(), st, []Mount{{Name: "b", Path: "/b"}}, parent(slots)); !errors.As(err,
				new(*volume.Error)) {
				t.Errorf("no such volume, %d slots: %v", slots, err)
			}
		}
	}
	for i := range maxLayers {
		write(t, st, "sb-1", int64(i)*disklayer.ClusterSize)
	}
	if i, err := st.Get("a"); err != nil || i.Layers != maxLayers {
		t.Fatalf("%+v, %v", i, err)
	}
	if err := Admit(t.Context(), st, list, parent(1)); err != nil {
		t.Fatal(err)
	}
	if i, err := st.Get("a"); err != nil || i.Layers != 1 {
		t.Errorf("after a merge: %+v, %v", i, err)
	}
	d, err := openAll(t, st, "sb-1", "", list)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var used *volume.InUseError
	if err := Admit(t.Context(), st, []Mount{{Name: "a", Path: "/b"}}, parent(1)); !errors.As(err, &used) ||
		used.SandboxID != "sb-1" {
		t.Errorf("a volume with a writer: %v", err)
	}
	for _, mode := range []string{record.MountReadOnly, record.MountCopy} {
		if err := Admit(t.Context(), st, []Mount{{Name: "a", Path: "/a", Mode: mode}}, parent(1)); err != nil {
			t.Errorf("%s beside a writer: %v", mode, err)
		}
	}
}

// A reader and a copy have files of their own, and do not become the volume's writer. After an
// error, no file stays open.
func TestOpen(t *testing.T) {
	st, dir := newStore(t), t.TempDir()
	write(t, st, "sb-1", 0)
	d, err := openAll(t, st, "sb-2", dir, []Mount{{Name: "a", Path: "/a", Mode: record.MountReadOnly}})
	if err != nil {
		t.Fatal(err)
	}
	if v := d.Volumes[0]; v.SizeBytes != 16<<20 || len(v.Files) != 3 {
		t.Errorf("%+v", v)
	}
	for i, f := range d.Volumes[0].Files {
		if filepath.Dir(f.Name()) != filepath.Join(dir, "volume0") {
			t.Errorf("file %d is %s, want one in %s", i, f.Name(), dir)
		}
		if _, err := f.WriteAt([]byte{1}, 0); (err == nil) != (i == 2) {
			t.Errorf("writing to file %d: %v", i, err)
		}
	}
	d.Close()
	if i, err := st.Get("a"); err != nil || i.Writer != "" {
		t.Errorf("%+v, %v", i, err)
	}
	_, err = openAll(t, st, "sb-3", t.TempDir(), []Mount{{Name: "a", Path: "/a"}, {Name: "b", Path: "/b"}})
	if !errors.As(err, new(*volume.Error)) {
		t.Errorf("the second volume does not exist: %v", err)
	}
	st.ReleaseAll("sb-3")
	if i, err := st.Get("a"); err != nil || i.Writer != "" {
		t.Errorf("after an error: %+v, %v", i, err)
	}
	links, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		to, _ := os.Readlink(filepath.Join("/proc/self/fd", l.Name())) // fails for the directory, which is closed
		if filepath.Ext(to) == ".layer" {
			t.Errorf("%s is open", to)
		}
	}
}

// A volume that a snapshot lacks keeps its former top, and after the rollback the VM syncs only the
// new top. So the end of the rollback syncs the former top.
func TestRollbacksSyncFormerTops(t *testing.T) {
	st, list := newStore(t), []Mount{{Name: "a", Path: "/a"}}
	d, err := openAll(t, st, "sb-1", "", list)
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	set := &Set{Store: st, Sandbox: "sb-1"}
	if d, err = set.Open(t.Context(), list, bare{}, true); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	files := d.Volumes[0].Files
	if err := files[len(files)-2].Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.End(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the former top could not be synced: %v", err)
	}
}
