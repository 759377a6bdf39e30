package store

import (
	"bytes"
	"github.com/forkd/forkd/internal/host/fileid"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/vm"
)

// onTmpfs moves the RAM directory of d to tmpfs, where reading a hole through a mapping allocates
// memory.
func (d *dirs) onTmpfs(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "forkd-test-")
	if err != nil {
		t.Skipf("no tmpfs: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		t.Skipf("/dev/shm is no tmpfs (%v)", err)
	}
	d.ram = filepath.Join(dir, "ram")
}

// publishSparse publishes a snapshot whose memory layer has the given size, with data in two pages.
// If first is set, the snapshot is flushed before it becomes visible.
func publishSparse(t *testing.T, s *Store, d dirs, tag string, size int64, first bool) {
	t.Helper()
	g, err := s.Stage(tag)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Discard()
	if first {
		g.DurableFirst()
	}
	page := bytes.Repeat([]byte{7}, vm.PageSize)
	var layer *os.File
	for _, name := range []string{snapshot.MemoryLayerFile, snapshot.StateFile, snapshot.DiskLayerFile} {
		f, err := g.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		layer = f // the last layer
		if name == snapshot.MemoryLayerFile {
			err = f.Truncate(size)
			for _, at := range []int64{vm.PageSize, size / 2} {
				if err == nil {
					_, err = f.WriteAt(page, at)
				}
			}
		} else {
			_, err = f.WriteString(name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	base, err := os.Open(d.base)
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	if err := g.UseBase(base); err != nil {
		t.Fatal(err)
	}
	m := &snapshot.Manifest{Machine: snapshot.Machine{MemoryBytes: uint64(size), VCPUs: 1, Template: "t"},
		Disk: &snapshot.Disk{SizeBytes: 8192}}
	extents := []vm.Extent{{GPA: vm.PageSize, Length: vm.PageSize, Offset: vm.PageSize},
		{GPA: uint64(size / 2), Length: vm.PageSize, Offset: uint64(size / 2)}}
	if _, err := g.Publish(m, extents, []*os.File{layer}); err != nil {
		t.Fatal(err)
	}
}

// fillHoles reads a layer through a mapping, as a VMM can, so that tmpfs allocates pages for the
// holes.
func fillHoles(t *testing.T, layer *os.File, size int) {
	t.Helper()
	mapped, err := unix.Mmap(int(layer.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for at := 0; at < size; at += vm.PageSize {
		sum += int(mapped[at])
	}
	if err := unix.Munmap(mapped); err != nil {
		t.Fatal(err)
	}
	if grown := fileid.BlocksOf(layer); sum != 14 || grown != uint64(size) {
		t.Fatalf("two pages of 7 add up to %d; the layer takes %d bytes after it was read", sum, grown)
	}
}

// A VMM can make tmpfs allocate memory for the holes of a layer, even though it is only allowed to
// read the layer. When the VMM has ended, the store frees that memory. The content of the layer is
// unchanged.
func TestHolesOfLayersAreGivenBack(t *testing.T) {
	const size = 16 << 20
	d := newDirs(t)
	d.onTmpfs(t)
	s := d.open(t)
	publishSparse(t, s, d, "base", size, true)
	lease, err := s.Acquire("base")
	if err != nil {
		t.Fatal(err)
	}
	other, err := s.Acquire("base") // simulates another VM
	if err != nil {
		t.Fatal(err)
	}
	layer := lease.Layers()[0]
	before := fileid.BlocksOf(layer)
	fillHoles(t, layer, size)
	lease.Release()
	layer = other.Layers()[0]
	if now := fileid.BlocksOf(layer); now > before+trimSlack {
		t.Errorf("the layer takes %d bytes, %d before", now, before)
	}
	want := make([]byte, size)
	for _, at := range []int{vm.PageSize, size / 2} {
		copy(want[at:], bytes.Repeat([]byte{7}, vm.PageSize))
	}
	got := make([]byte, size)
	if _, err := layer.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the layer has other bytes, %v", err)
	}
	other.Release()
	if err := s.Verify(t.Context(), "base"); err != nil {
		t.Error(err)
	}
}

// Holes that were filled under an earlier daemon, or before the layer was on disk, are also freed.
// The file on disk has holes in the same places.
func TestHolesFilledEarlierAreGivenBack(t *testing.T) {
	const size = 16 << 20
	d := newDirs(t)
	d.onTmpfs(t)
	s := d.open(t)
	publishSparse(t, s, d, "base", size, true)
	lease, err := s.Acquire("base")
	if err != nil {
		t.Fatal(err)
	}
	fillHoles(t, lease.Layers()[0], size) // no VM ends its lease before the daemon exits
	s.Close()
	s = d.open(t)
	if lease, err = s.Acquire("base"); err != nil {
		t.Fatal(err)
	}
	layer, err := os.Open(lease.Layers()[0].Name())
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	lease.Release()
	if now := fileid.BlocksOf(layer); now > size/2 {
		t.Errorf("after a restart the layer takes %d bytes", now)
	}

	other := s.byTag["base"] // keeps the flusher busy
	other.flushed = make(chan struct{})
	other.flushMu.Lock()
	s.flusher.Add(other)
	publishSparse(t, s, d, "hot", size, false)
	if lease, err = s.Acquire("hot"); err != nil {
		t.Fatal(err)
	}
	hot := lease.Layers()[0]
	fillHoles(t, hot, size)
	other.flushMu.Unlock()
	if err := s.WaitFlushed(t.Context(), "hot"); err != nil {
		t.Fatal(err)
	}
	if n := fileid.Blocks(filepath.Join(s.dir("hot"), snapshot.MemoryLayerFile)); n > size/2 {
		t.Errorf("the layer takes %d bytes on disk", n)
	}
	again, err := s.Acquire("hot")
	if err != nil {
		t.Fatal(err)
	}
	defer again.Release()
	lease.Release()
	if now := fileid.BlocksOf(hot); now > size/2 {
		t.Errorf("after its flush the layer takes %d bytes", now)
	}
	if err := s.Verify(t.Context(), "hot"); err != nil {
		t.Error(err)
	}
}
