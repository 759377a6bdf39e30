package hub

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

const (
	memory = 1 << 20
	disk   = 1 << 20
)

// host is a store with a hub.
type host struct {
	*Hub
	store     *store.Store
	root, ram string
	room      error // returned by the hub's Config.Room
	disk      int64 // size of the disks that makeOf makes; 0 means the constant disk

	tryErr error // returned by the hub's Config.Try
	tried  []trial
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{root: filepath.Join(t.TempDir(), "state"), ram: filepath.Join(t.TempDir(), "ram")}
	h.open(t)
	return h
}

func (h *host) open(t *testing.T) {
	t.Helper()
	var err error
	if h.store, err = store.Open(store.Config{Root: h.root, RAM: h.ram}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.store.Close() })
	h.Hub, err = New(Config{Store: h.store, Dir: Dir(h.root), Memory: 1 << 30,
		Room: func(uint64, *os.File) error { return h.room }, Try: h.trial, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
}

// trial is the hub's Config.Try.
func (h *host) trial(_ context.Context, m snapshot.Machine, size uint64, state *os.File) error {
	content, err := io.ReadAll(state)
	if err != nil {
		return err
	}
	h.tried = append(h.tried, trial{m.Shape(), size, string(content)})
	return h.tryErr
}

// trial is a call of the hub's Config.Try.
type trial struct {
	shape vm.Shape
	disk  uint64
	state string
}

// page returns a page of memory or disk.
func page(b byte) []byte { return bytes.Repeat([]byte{b}, vm.PageSize) }

// write creates a file of a snapshot.
func write(t *testing.T, g *store.Staging, name string, fill func(f *os.File) error) {
	t.Helper()
	f, err := g.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := fill(f); err != nil {
		t.Fatal(err)
	}
}

func at(offset int64, p []byte) func(*os.File) error {
	return func(f *os.File) error { _, err := f.WriteAt(p, offset); return err }
}

// make publishes a snapshot. Its memory has the mark at page n, followed by a page of zeros that no
// lower layer has. Its disk has the mark in cluster n.
func (h *host) make(t *testing.T, tag, parent string, n int64, mark byte) {
	t.Helper()
	h.makeOf(t, tag, parent, n, mark, func(name string) []byte { return bytes.Repeat([]byte(name), disk/8) })
}

// makeOf is like make. The base image and the kernel have the content that content(name) returns
// for their names.
func (h *host) makeOf(t *testing.T, tag, parent string, n int64, mark byte, content func(name string) []byte) {
	t.Helper()
	disk := cmp.Or(h.disk, disk)
	g, err := h.store.Stage(tag)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Discard()
	write(t, g, snapshot.MemoryLayerFile, func(f *os.File) error {
		return errors.Join(f.Truncate(memory), at(n*vm.PageSize, page(mark))(f), at((n+1)*vm.PageSize, page(0))(f))
	})
	write(t, g, snapshot.StateFile, at(0, []byte("state of "+tag)))
	write(t, g, "disk", func(f *os.File) error {
		if err := disklayer.Format(f, uint64(disk)); err != nil {
			return err
		}
		return at(n*disklayer.ClusterSize, page(mark))(f)
	})
	m := &snapshot.Manifest{Machine: snapshot.Machine{MemoryBytes: memory, VCPUs: 1, Template: vm.TemplatePortable},
		Guest: snapshot.Guest{Kernel: "6.12", Network: &snapshot.Network{Mode: "open"}, Strict: true,
			Defaults: snapshot.Defaults{User: "app"}},
		Disk: &snapshot.Disk{SizeBytes: uint64(disk)}}
	var lower []*os.File
	var extents []vm.Extent
	if parent == "" {
		for name, use := range map[string]func(*os.File) error{"base": g.UseBase, "kernel": nil} {
			f, err := os.Create(filepath.Join(t.TempDir(), name))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := at(0, content(name))(f); err != nil {
				t.Fatal(err)
			}
			if use == nil {
				use = func(f *os.File) error { return g.UseBoot(f, f) }
			}
			if err := use(f); err != nil {
				t.Fatal(err)
			}
		}
	} else {
		lease, err := h.store.Acquire(parent)
		if err != nil {
			t.Fatal(err)
		}
		defer lease.Release()
		pm := lease.Manifest()
		m.Parent, m.Root, m.Boot = &snapshot.Ref{ID: pm.ID, Tag: pm.Tag}, pm.ID, pm.Boot
		m.Branch = &snapshot.Branch{SandboxID: "sb-x", Mode: "live", Labels: map[string]string{"team": "a"}}
		m.Memory, m.Disk.Base, m.Disk.Layers = slices.Clone(pm.Memory), pm.Disk.Base, slices.Clone(pm.Disk.Layers)
		lower, extents = lease.Disk()[1:], slices.Clone(lease.Extents())
	}
	start := uint64(n * vm.PageSize)
	extents = append(
		extents,
		vm.Extent{GPA: start, Length: 2 * vm.PageSize, Layer: uint32(len(m.Memory)), Offset: start},
	)
	top, err := os.Open(g.Path("disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	if err := os.Rename(g.Path("disk"), g.Path(snapshot.DiskLayerFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Publish(m, extents, append(lower, top)); err != nil {
		t.Fatal(err)
	}
	if err := h.store.WaitFlushed(t.Context(), tag); err != nil {
		t.Fatal(err)
	}
}

func ignore(Progress) {}

// pack returns the archive of a snapshot.
func (h *host) pack(t *testing.T, tag string) []byte {
	t.Helper()
	p, err := h.Pack(t.Context(), "ann", tag)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var out bytes.Buffer
	if err := p.WriteArchive(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func (h *host) unpack(t *testing.T, tag string, archive []byte) error {
	t.Helper()
	return h.unpackWith(t.Context(), tag, archive, ignore)
}

func (h *host) unpackWith(ctx context.Context, tag string, archive []byte, on func(Progress)) error {
	a, err := h.Receive(ctx, bytes.NewReader(archive), Off, nil)
	if err != nil {
		return err
	}
	defer a.Close()
	_, err = h.Unpack(ctx, "ann", tag, a, on)
	return err
}

// check compares the memory and the disks of a snapshot.
func (h *host) check(t *testing.T, tag string, marks map[int64]byte) {
	t.Helper()
	if err := h.store.Verify(t.Context(), tag); err != nil {
		t.Fatal(err)
	}
	lease, err := h.store.Acquire(tag)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	for n, mark := range marks {
		found := false
		for _, e := range lease.Extents() {
			if start := uint64(n * vm.PageSize); e.GPA <= start && start < e.GPA+e.Length {
				p := make([]byte, vm.PageSize)
				if _, err := lease.Layers()[e.Layer].ReadAt(p, int64(e.Offset+start-e.GPA)); err != nil ||
					p[7] != mark {
					t.Errorf("%s: page %d is %d, %v; want %d", tag, n, p[7], err, mark)
				}
				found = true
			}
		}
		if !found {
			t.Errorf("%s: page %d is in no extent", tag, n)
		}
		p, seen := make([]byte, 1), byte(0)
		for _, f := range lease.Disk()[1:] {
			if _, err := f.ReadAt(p, n*disklayer.ClusterSize); err == nil && p[0] != 0 {
				seen = p[0]
			}
		}
		if seen != mark {
			t.Errorf("%s: cluster %d is %d, want %d", tag, n, seen, mark)
		}
	}
	for i, f := range lease.Layers() { // a hole would need memory when a child reads it
		for _, e := range lease.Extents() {
			if int(e.Layer) != i {
				continue
			}
			hole, err := unix.Seek(int(f.Fd()), int64(e.Offset), unix.SEEK_HOLE)
			if err != nil || uint64(hole) < e.Offset+e.Length {
				t.Errorf("%s: layer %d has a hole at %d in the extent %+v, %v", tag, i, hole, e, err)
			}
		}
	}
}

// A family of snapshots travels to another host, has all of its content there, and shares its layers again.
func TestPackAndUnpack(t *testing.T) {
	a, b := newHost(t), newHost(t)
	a.make(t, "parent", "", 2, 'p')
	a.make(t, "child", "parent", 10, 'c')
	a.make(t, "grandchild", "child", 20, 'g')
	family := map[string]map[int64]byte{
		"parent":     {2: 'p'},
		"child":      {2: 'p', 10: 'c'},
		"grandchild": {2: 'p', 10: 'c', 20: 'g'},
	}
	for _, tag := range []string{"grandchild", "parent", "child"} {
		if err := b.unpack(t, "", a.pack(t, tag)); err != nil {
			t.Fatal(err)
		}
		b.check(t, tag, family[tag])
	}
	inode := func(path string) uint64 {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return st.Sys().(*syscall.Stat_t).Ino
	}
	layers := func(tag string) (list []uint64) {
		names, err := filepath.Glob(filepath.Join(b.root, "snapshots", tag, "memory.layer.*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			list = append(list, inode(name))
		}
		return list
	}
	others := append(layers("grandchild"), inode(filepath.Join(b.root, "snapshots", "parent", snapshot.MemoryLayerFile)))
	if own := layers("child"); len(others) != 3 || len(own) != 1 || !slices.Contains(others, own[0]) {
		t.Errorf("layers of child %v, of the others %v: want a shared one", own, others)
	}
	if left, err := os.ReadDir(filepath.Join(b.root, "hub", "blobs")); err != nil || len(left) != 0 {
		t.Errorf("%d blobs are left, %v", len(left), err)
	}
	b.store.Close()
	if err := os.RemoveAll(b.ram); err != nil { // as after a reboot
		t.Fatal(err)
	}
	b.open(t)
	for tag, marks := range family {
		b.check(t, tag, marks)
	}
	if err := b.unpack(t, "again", a.pack(t, "child")); err != nil {
		t.Fatal(err)
	}
	b.check(t, "again", family["child"])
}

// A packed snapshot contains neither its policy, its labels nor the id of its sandbox. On the new
// host, the snapshot, its parent and the owners of its layers have new IDs.
func TestNothingPrivateTravels(t *testing.T) {
	a, b := newHost(t), newHost(t)
	a.make(t, "team-a.base", "", 2, 'p')
	a.make(t, "child", "team-a.base", 10, 'c')
	archive := a.pack(t, "child")
	for _, secret := range []string{"team-a", "sb-x", `"team"`} {
		if bytes.Contains(archive, []byte(secret)) {
			t.Errorf("the archive has %q", secret)
		}
	}
	if err := b.unpack(t, "", archive); err != nil {
		t.Fatal(err)
	}
	old, err := a.store.Acquire("child")
	if err != nil {
		t.Fatal(err)
	}
	defer old.Release()
	lease, err := b.store.Acquire("child")
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	m := lease.Manifest()
	if m.Guest.Network != nil || m.Guest.Strict || m.Branch != nil || m.Root != "" || m.Guest.User != "app" {
		t.Errorf("manifest %+v", m)
	}
	if m.ID == old.Manifest().ID || m.Parent.ID == old.Manifest().Parent.ID ||
		m.Memory[0].Owner == old.Manifest().Memory[0].Owner {
		t.Errorf("the names of the other host are kept: %+v", m)
	}
}

// If the disk is full or the client disconnects, an unpack ends, and no files are left.
func TestUnpackThatEndsEarly(t *testing.T) {
	a, b := newHost(t), newHost(t)
	a.make(t, "parent", "", 2, 'p')
	archive := a.pack(t, "parent")
	b.room = unix.ENOSPC
	if err := b.unpack(t, "", archive); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	b.isClean(t, "a full disk", 0)
	b.room = nil
	ctx, cancel := context.WithCancel(t.Context())
	steps := 0
	err := b.unpackWith(ctx, "", archive, func(Progress) {
		if steps++; steps == 2 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	b.isClean(t, "a client that leaves", 0)
	if err := b.unpack(t, "x", archive); err != nil {
		t.Fatal(err)
	}
	if err := b.unpack(t, "x", archive); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Error(err)
	}
	if err := b.unpack(t, "../x", archive); err == nil || !strings.Contains(err.Error(), "tag: ") {
		t.Error(err)
	}
}

// The second package of a family reuses the blobs of the first package. After the cache has dropped
// old blobs, a package has the same content as before.
func TestPackedBlobsAreReused(t *testing.T) {
	a := newHost(t)
	a.make(t, "parent", "", 2, 'p')
	a.make(t, "child", "parent", 10, 'c')
	first := a.pack(t, "parent")
	before, err := a.cache.list("blobs")
	if err != nil {
		t.Fatal(err)
	}
	child := a.pack(t, "child")
	after, err := a.cache.list("blobs")
	if err != nil || len(after)-len(before) != 4 { // state, map, and a layer of each kind
		t.Errorf("%d blobs, then %d, %v", len(before), len(after), err)
	}
	if err := a.cache.trim(0); err != nil {
		t.Fatal(err)
	}
	if left, err := a.cache.list("blobs"); err != nil || len(left) != 0 {
		t.Errorf("%d blobs are left, %v", len(left), err)
	}
	if !bytes.Equal(a.pack(t, "child"), child) || !bytes.Equal(a.pack(t, "parent"), first) {
		t.Error("the second archive of a snapshot differs from the first")
	}
}

// The blobs of a deleted snapshot are removed at the deletion, or at the next start. Blobs of files
// that other snapshots also have are kept.
func TestBlobsOfDeletedSnapshotsAreRemoved(t *testing.T) {
	a := newHost(t)
	has := func(want int, when string) {
		t.Helper()
		for _, sub := range []string{"blobs", "made"} {
			if list, err := a.cache.list(sub); err != nil || len(list) != want {
				t.Errorf("%s: %d files in %s, want %d: %v", when, len(list), sub, want, err)
			}
		}
	}
	a.make(t, "parent", "", 2, 'p')
	a.pack(t, "parent")
	list, err := a.cache.list("blobs")
	if err != nil {
		t.Fatal(err)
	}
	all := len(list)
	a.make(t, "child", "parent", 10, 'c')
	a.make(t, "other", "parent", 20, 'o')
	a.pack(t, "child")
	a.pack(t, "other")
	has(all+8, "packed") // state, map, and a layer of each kind
	left := 0
	a.store.OnGone(func(*snapshot.Manifest) { left++ })
	if _, err := a.store.Delete("child", store.DeleteSingle); err != nil || left != 1 {
		t.Fatal(left, err)
	}
	has(all+4, "after the deletion of a child")
	a.check(t, "other", map[int64]byte{2: 'p', 20: 'o'})
	a.store.Close()
	if a.store, err = store.Open(store.Config{Root: a.root, RAM: a.ram}); err != nil { // without a hub
		t.Fatal(err)
	}
	if _, err := a.store.Delete("parent", store.DeleteCascade); err != nil {
		t.Fatal(err)
	}
	has(all+4, "after a deletion without a hub")
	a.store.Close()
	a.open(t)
	has(0, "after the next start")
}

// If a daemon is killed, its unfinished blobs are removed at the next start.
func TestUnfinishedBlobsAreRemoved(t *testing.T) {
	a := newHost(t)
	left := filepath.Join(a.root, "hub", "blobs", tmpPrefix+"123")
	if err := os.WriteFile(left, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.store.Close()
	a.open(t)
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Error(err)
	}
}

// A damaged snapshot is not packed.
func TestDamageDoesNotTravel(t *testing.T) {
	a := newHost(t)
	a.make(t, "parent", "", 2, 'p')
	if err := a.store.Verify(t.Context(), "parent"); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(a.root, "snapshots", "parent", snapshot.DiskLayerFile), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Pack(t.Context(), "ann", "parent"); err == nil ||
		!strings.Contains(err.Error(), "disk.layer.0: its digest is") {
		t.Error(err)
	}
	if _, err := a.Pack(t.Context(), "ann", "none"); err == nil ||
		!strings.Contains(err.Error(), "not found") {
		t.Error(err)
	}
}
