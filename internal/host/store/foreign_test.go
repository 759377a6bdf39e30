package store

import (
	"bytes"
	"errors"
	"github.com/forkd/forkd/internal/host/fileid"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/vm"
)

const layerBytes = 2 * vm.PageSize

// foreign puts a snapshot into the store's directory, as an import would. The second layer of the
// snapshot is a separate file. The manifest claims that this layer belongs to the snapshot with the
// given ID. The given function may damage the snapshot further.
func foreign(t *testing.T, d dirs, like *snapshot.Manifest, tag, owner string,
	change func(dir string, m *snapshot.Manifest)) {
	t.Helper()
	m := *like
	m.ID, m.Tag, m.Branch = snapshot.NewID(), tag, nil
	m.Parent = &snapshot.Ref{ID: snapshot.NewID(), Tag: "elsewhere"}
	dir := filepath.Join(d.root, "snapshots", tag)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	put := func(name string, p []byte) snapshot.File {
		if err := os.WriteFile(filepath.Join(dir, name), p, 0o600); err != nil {
			t.Fatal(err)
		}
		return snapshot.File{Owner: m.ID, Bytes: uint64(len(p))}
	}
	p, err := snapshot.EncodeMemoryMap([]vm.Extent{{Length: layerBytes}}, []uint64{layerBytes}, like.Machine.MemoryBytes)
	if err != nil {
		t.Fatal(err)
	}
	m.State, m.Map = put(snapshot.StateFile, []byte("state")), put(snapshot.MemoryMapFile, p)
	named := put(snapshot.LayerFile(snapshot.MemoryLayerFile, m.ID, owner), bytes.Repeat([]byte{6}, layerBytes))
	named.Owner = owner
	m.Memory = []snapshot.File{named, put(snapshot.MemoryLayerFile, bytes.Repeat([]byte{6}, layerBytes))}
	disk := *like.Disk
	disk.Layers = []snapshot.File{put(snapshot.DiskLayerFile, []byte("disk"))}
	m.Disk = &disk
	if change != nil {
		change(dir, &m)
	}
	if p, err = m.Encode(); err != nil {
		t.Fatal(err)
	}
	put(snapshot.ManifestFile, p)
}

// firstByte returns the first byte of a snapshot's lowest memory layer, as VMs would read it.
func firstByte(t *testing.T, s *Store, tag string) byte {
	t.Helper()
	lease, err := s.Acquire(tag)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	p := make([]byte, 1)
	if _, err := lease.Layers()[0].ReadAt(p, 0); err != nil {
		t.Fatal(err)
	}
	return p[0]
}

// victims makes a snapshot and a branch of it, and closes the store. It returns the manifest of the
// snapshot.
func victims(t *testing.T, d dirs) *snapshot.Manifest {
	t.Helper()
	s := d.open(t)
	publish(t, s, d, "victim", "")
	publish(t, s, d, "branch", "victim")
	if err := s.WaitFlushed(t.Context(), "branch"); err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"victim", "branch"} {
		if err := s.seal(t.Context(), tag); err != nil {
			t.Fatal(err)
		}
	}
	m := *s.manifestOf("victim")
	s.Close()
	return &m
}

// If a snapshot claims the layer of another snapshot, neither snapshot receives the memory of the
// other. This holds in any order of use, and whether or not the layer is in RAM.
func TestForeignSnapshotSharesNoMemory(t *testing.T) {
	for _, order := range []string{"victim branch foreign", "foreign victim branch", "branch foreign victim"} {
		for _, rebooted := range []bool{false, true} {
			d := newDirs(t)
			m := victims(t, d)
			foreign(t, d, m, "foreign", m.ID, nil)
			if rebooted {
				if err := os.RemoveAll(d.ram); err != nil {
					t.Fatal(err)
				}
			}
			s := d.open(t)
			for _, tag := range strings.Fields(order) {
				want := byte(1)
				if tag == "foreign" {
					want = 6
				}
				if got := firstByte(t, s, tag); got != want {
					t.Errorf("%s, rebooted %v: %s has %d where %d belongs", order, rebooted, tag, got, want)
				}
			}
			s.Close()
		}
	}
}

// The snapshots of a chain share one copy in RAM, even after a restart. The check of a layer's
// origin must permit that.
func TestChainSharesOneCopyInRAM(t *testing.T) {
	d := newDirs(t)
	m := victims(t, d)
	for _, rebooted := range []bool{false, true} {
		if rebooted {
			if err := os.RemoveAll(d.ram); err != nil {
				t.Fatal(err)
			}
		}
		s := d.open(t)
		var ids [2]fileid.ID
		for i, tag := range []string{"branch", "victim"} {
			lease, err := s.Acquire(tag)
			if err != nil {
				t.Fatal(err)
			}
			if ids[i], err = fileid.Of(lease.Layers()[0]); err != nil {
				t.Fatal(err)
			}
			lease.Release()
		}
		if want := fileid.OfPath(s.ramLayer(m.ID)); ids[0] != want || ids[1] != want {
			t.Errorf("rebooted %v: layers %+v, in RAM %+v", rebooted, ids, want)
		}
		s.Close()
	}
}

// If a file has the name of a layer, but is a different file, it does not get the layer's digest.
func TestForeignSnapshotInheritsNoDigest(t *testing.T) {
	d := newDirs(t)
	m := victims(t, d)
	foreign(t, d, m, "foreign", m.ID, nil)
	s := d.open(t)
	if err := s.seal(t.Context(), "foreign"); err != nil {
		t.Fatal(err)
	}
	if got := s.manifestOf("foreign").Memory[0].Digest; got == "" || got == m.Memory[0].Digest {
		t.Errorf("digest of the foreign layer %s, of the victim's %s", got, m.Memory[0].Digest)
	}
	if err := s.Verify(t.Context(), "foreign"); err != nil {
		t.Error(err)
	}
	// The branch has a link to the same file, so the branch inherits the digest.
	branch := *s.manifestOf("branch")
	branch.Memory = slices.Clone(branch.Memory)
	for i := range branch.Memory {
		branch.Memory[i].Digest = ""
	}
	s.inheritDigests(&branch)
	if branch.Memory[0].Digest != m.Memory[0].Digest || branch.Memory[1].Digest != "" {
		t.Errorf("a linked layer's digest was not taken over: %+v", branch.Memory)
	}
}

// A file is refused if it is a link out of the snapshot's directory, if opening it would block, or
// if a different program has made a second link to it. The error names the file.
func TestForeignFilesAreRefused(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, bytes.Repeat([]byte{9}, layerBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	replace := func(name string, by func(path string) error) func(string, *snapshot.Manifest) {
		return func(dir string, _ *snapshot.Manifest) {
			path := filepath.Join(dir, name)
			if err := errors.Join(os.Remove(path), by(path)); err != nil {
				t.Fatal(err)
			}
		}
	}
	link := func(path string) error { return os.Symlink(secret, path) }
	fifo := func(path string) error { return syscall.Mkfifo(path, 0o600) }
	for name, c := range map[string]struct {
		file   string
		change func(string, *snapshot.Manifest)
		want   string
	}{
		"memory link": {snapshot.MemoryLayerFile, replace(snapshot.MemoryLayerFile, link), "symbolic links"},
		"memory FIFO": {snapshot.MemoryLayerFile, replace(snapshot.MemoryLayerFile, fifo), "not a regular file"},
		"disk link":   {snapshot.DiskLayerFile, replace(snapshot.DiskLayerFile, link), "symbolic links"},
		"state FIFO":  {snapshot.StateFile, replace(snapshot.StateFile, fifo), "not a regular file"},
		"map FIFO":    {snapshot.MemoryMapFile, replace(snapshot.MemoryMapFile, fifo), "not a regular file"},
		"shared state": {snapshot.StateFile, func(dir string, m *snapshot.Manifest) {
			if err := os.Link(filepath.Join(dir, snapshot.StateFile), filepath.Join(rootOf(dir), "other")); err != nil {
				t.Fatal(err)
			}
		}, "2 names"},
		"base of nobody": {"base image", func(_ string, m *snapshot.Manifest) {
			m.Disk.Base.Digest = "sha256-4k:" + strings.Repeat("00", 32)
		}, "unknown to this store"},
		"base of another length": {"base image", func(_ string, m *snapshot.Manifest) { m.Disk.Base.Bytes-- }, "changed"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDirs(t)
			m := victims(t, d)
			foreign(t, d, m, "foreign", snapshot.NewID(), c.change)
			s := d.open(t)
			var damaged *DamagedError
			_, err := s.Acquire("foreign")
			if !errors.As(err, &damaged) || !strings.HasPrefix(damaged.File, c.file) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: want %q and %q", err, c.file, c.want)
			}
			if firstByte(t, s, "victim") != 1 {
				t.Error("the victim has changed")
			}
		})
	}
}

// rootOf returns the root of the store, given the directory of a snapshot.
func rootOf(dir string) string { return filepath.Dir(filepath.Dir(dir)) }

// If two snapshots have the same ID, both are refused, because a branch names its parent by the ID.
func TestTwinsAreRefused(t *testing.T) {
	d := newDirs(t)
	m := victims(t, d)
	foreign(t, d, m, "twin", snapshot.NewID(), func(_ string, twin *snapshot.Manifest) {
		twin.ID = m.ID
		twin.State.Owner, twin.Map.Owner, twin.Memory[1].Owner, twin.Disk.Layers[0].Owner = m.ID, m.ID, m.ID, m.ID
	})
	s := d.open(t)
	for _, tag := range []string{"victim", "twin"} {
		if _, err := s.Acquire(tag); err == nil || !strings.Contains(err.Error(), "same id") {
			t.Errorf("%s: %v", tag, err)
		}
	}
	if firstByte(t, s, "branch") != 1 {
		t.Error("the branch has changed")
	}
}
