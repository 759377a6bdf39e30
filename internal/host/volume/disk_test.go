package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/vm"
)

// saved returns the content of a disk, and the open files of a snapshot that has links to them.
func saved(t *testing.T, s *Store, d Disk) (snapshot.Volume, []*os.File) {
	t.Helper()
	v, files, err := s.Content(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for i, f := range files {
		name := filepath.Join(dir, v.Files[i].Owner)
		if err := errors.Join(os.Link(f.Name(), name), f.Close()); err != nil {
			t.Fatal(err)
		}
		if files[i], err = os.Open(name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = files[i].Close() })
	}
	return v, files
}

// swapTop switches the VM of a disk to a new top, and returns the content of the former top.
func swapTop(t *testing.T, s *Store, d Disk, m marks) (snapshot.Volume, []*os.File) {
	t.Helper()
	f, top, err := s.BeginSwap(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write(t, f.Top, m)
	for range 2 { // the second call does nothing
		if err := s.EndSwap(t.Context(), d, top, true); err != nil {
			t.Fatal(err)
		}
	}
	return saved(t, s, d)
}

// afterEachStep passes a copy of the store to the given function at each step, as if the daemon and
// the VM had been killed at that step and the writer had ended.
func afterEachStep(t *testing.T, s *Store, check func(done string, next *Store)) {
	t.Helper()
	dir := s.cfg.Dir
	s.step = func(done string) {
		copied := filepath.Join(t.TempDir(), "volumes")
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		next := open(t, copied)
		next.Recover(func(string) bool { return false })
		check(done, next)
	}
}

// If a daemon is killed during a swap, the volume keeps all data of both tops, whether the VM has
// switched or not.
func TestKilledDuringASwap(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "volumes"))
	create(t, s, "a")
	startWriter(t, s, marks{4000: 1, 4001: 1})
	d := Disk{Sandbox: "sb-1", Name: "a"}
	want, steps := marks{4000: 1, 4001: 1}, 0
	afterEachStep(t, s, func(done string, next *Store) {
		steps++
		if got := content(t, next, "a"); !equal(got, want) {
			t.Errorf("after %q: %v, want %v", done, got, want)
		}
	})
	// Without a switch, the new top is removed.
	_, top, err := s.BeginSwap(t.Context(), d)
	if err == nil {
		err = s.EndSwap(t.Context(), d, top, false)
	}
	if _, gone := os.Stat(filepath.Join(s.path("a"), top)); err != nil || !errors.Is(gone, os.ErrNotExist) {
		// the test has the new top open for writing, so it stays until the next start
		if r := recordOf(s); err != nil || slices.Contains(r.Files(), top) {
			t.Fatalf("%v, %+v", err, r)
		}
	}
	// If a daemon was killed before it told the VM about a new top, that top is replaced.
	unused, left, err := s.BeginSwap(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	unused.Close()
	f, top, err := s.BeginSwap(t.Context(), d)
	if err != nil || top == left {
		t.Fatal(top, err)
	}
	defer f.Close()
	if err := s.EndSwap(t.Context(), d, left, true); err == nil {
		t.Error("a switch to a top that the record does not name")
	}
	write(t, f.Top, marks{4001: 2, 4002: 2})
	want = marks{4000: 1, 4001: 2, 4002: 2}
	if err := s.EndSwap(t.Context(), d, top, true); err != nil {
		t.Fatal(err)
	}
	if r := recordOf(s); len(r.Layers) != 1 || r.Writer.Top != top || r.Writer.Next != "" || steps < 8 {
		t.Errorf("%+v after %d steps", r, steps)
	}
}

// A volume goes back to the content of a snapshot completely or not at all. Until Commit, it loses no
// data.
func TestKilledWhileGoingBack(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "volumes"))
	create(t, s, "a")
	startWriter(t, s, marks{4000: 1})
	d := Disk{Sandbox: "sb-1", Name: "a"}
	first, files := swapTop(t, s, d, marks{4000: 2, 4001: 2})
	before, back := marks{4000: 2, 4001: 2}, marks{4000: 1}
	committed := false
	afterEachStep(t, s, func(done string, next *Store) {
		got := content(t, next, "a")
		if !equal(got, before) && !(committed && equal(got, back)) {
			t.Errorf("after %q: %v", done, got)
		}
	})
	b, err := s.GoBack(t.Context(), d, &first, files)
	if err != nil {
		t.Fatal(err)
	}
	b.Finish(t.Context()) // without Commit, nothing changes
	if b, err = s.GoBack(t.Context(), d, &first, files); err != nil {
		t.Fatal(err)
	}
	committed = true
	if err := b.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.Finish(t.Context())
	before = back
	if r := recordOf(s); len(r.Layers) != 1 || r.Writer == nil || r.Writer.SandboxID != "sb-1" {
		t.Errorf("%+v", r)
	}
	other := first
	other.ID = snapshot.VolumeID + snapshot.NewID()
	if _, err := s.GoBack(t.Context(), d, &other, files); err == nil {
		t.Error("the content of another volume")
	}
	// A suspended writer has no top, and the volume has all data of the writer.
	if err := s.Suspend(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if r := recordOf(s); r.Writer == nil || r.Writer.Top != "" {
		t.Errorf("%+v", r)
	}
	if _, _, err := s.BeginSwap(t.Context(), d); err == nil {
		t.Error("a swap without a VM")
	}
	s.step = func(string) {}
	if err := s.Release(t.Context(), "a", "sb-1"); err != nil {
		t.Fatal(err)
	}
	if got := content(t, s, "a"); !equal(got, back) {
		t.Errorf("%v", got)
	}
}

// If the lower of two tops is damaged, the upper top is dropped too.
func TestDamagedLowerTop(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "volumes"))
	create(t, s, "a")
	startWriter(t, s, marks{4000: 1})
	d := Disk{Sandbox: "sb-1", Name: "a"}
	swapTop(t, s, d, marks{4000: 2})
	f, _, err := s.BeginSwap(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	write(t, f.Top, marks{4000: 3})
	f.Close()
	if err := os.Truncate(filepath.Join(s.path("a"), recordOf(s).Writer.Top), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context(), "a", "sb-1"); err != nil {
		t.Fatal(err)
	}
	if got := content(t, s, "a"); !equal(got, marks{4000: 1}) {
		t.Errorf("%v", got)
	}
}

// A sandbox damages a layer that was its top until a branch. Branches fail from then on. After the
// sandbox has ended, the volume has its content from before that layer, even if the daemon was
// restarted.
func TestDamagedLayerOfABranch(t *testing.T) {
	for _, restart := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "volumes")
		s := open(t, dir)
		create(t, s, "a")
		startWriter(t, s, marks{4000: 1})
		d := Disk{Sandbox: "sb-1", Name: "a"}
		swapTop(t, s, d, marks{4000: 2})
		swapTop(t, s, d, marks{4000: 3})
		damaged := recordOf(s).Layers[1]
		if err := os.Truncate(filepath.Join(s.path("a"), damaged), 0); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Content(t.Context(), d); !errors.Is(err, disklayer.ErrFormat) {
			t.Errorf("a branch: %v", err)
		}
		if restart {
			s = open(t, dir)
		}
		if err := s.Release(t.Context(), "a", "sb-1"); err != nil {
			t.Fatal(err)
		}
		if got := content(t, s, "a"); !equal(got, marks{4000: 1}) {
			t.Errorf("%v, restarted: %v", got, restart)
		}
		if r := recordOf(s); len(r.Layers) != 1 || r.Writer != nil {
			t.Errorf("%+v", r)
		}
		if err := closed(s.Write(t.Context(), "a", "sb-2")); err != nil {
			t.Errorf("the next writer: %v", err)
		}
	}
}

// If a merge began before the volume had its writer, and ends while the volume goes back, the
// record then names only files that exist.
func TestMergeWhileGoingBack(t *testing.T) {
	s, d, back := twoLayers(t), Disk{Sandbox: "sb-1", Name: "a"}, (*Back)(nil)
	s.step = func(done string) {
		if done != "merged layers" {
			return
		}
		s.step = func(string) {}
		if err := closed(s.Write(t.Context(), "a", "sb-1")); err != nil {
			t.Fatal(err)
		}
		first, files := swapTop(t, s, d, marks{4000: 9})
		var err error
		if back, err = s.GoBack(t.Context(), d, &first, files); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Merge(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := back.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	back.Finish(t.Context())
	s.ReleaseAll("sb-1")
	for _, s := range []*Store{s, open(t, s.cfg.Dir)} {
		if got, want := content(t, s, "a"), (marks{4000: 1, 4001: 2}); !equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

// The files that the record of a volume names are durable, even if no guest has flushed them since
// a branch.
func TestLayersAreSynced(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "volumes"))
	create(t, s, "a")
	startWriter(t, s, marks{4000: 1})
	d := Disk{Sandbox: "sb-1", Name: "a"}
	first, files := swapTop(t, s, d, marks{4000: 2})
	synced := map[string]bool{}
	s.sync = func(f *os.File) error {
		synced[filepath.Base(f.Name())] = true
		return f.Sync()
	}
	frozen := recordOf(s).Layers
	b, err := s.GoBack(t.Context(), d, &first, files)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range frozen {
		if !synced[name] {
			t.Errorf("going back to %q, which is not synced", name)
		}
	}
	b.Finish(t.Context())
	clear(synced)
	if err := s.Release(t.Context(), "a", "sb-1"); err != nil {
		t.Fatal(err)
	}
	for _, name := range recordOf(s).Layers {
		if !synced[name] {
			t.Errorf("a released volume has %q, which is not synced", name)
		}
	}
}

// Merges below tops count as merges of the sandbox's owner.
func TestMergesBelowAreBounded(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "volumes"))
	create(t, s, "a")
	startWriter(t, s, marks{4000: 1})
	d := Disk{Sandbox: "sb-1", Owner: "token:x", Name: "a"}
	for range maxBranched {
		swapTop(t, s, d, marks{4000: 2})
	}
	leave, err := s.merges.Enter(gate.Share{Key: "token:x", Most: mergesAtOnce - 1})
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	inVMM := func(*os.File) error { return nil }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.MergeBelow(ctx, d, inVMM) }()
	for s.merges.Waiting() == 0 && len(ended) == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a second merge of the owner: %v", err)
	}
	d.Owner = "token:y"
	if err := s.MergeBelow(t.Context(), d, inVMM); err != nil || len(recordOf(s).Layers) != 1 {
		t.Errorf("a merge of another owner: %v", err)
	}
}

// The descriptors of the longest restore fit into one message to a VMM. Package chain bounds the layers
// of memory and of the root disk.
func TestRestoresFitIntoAMessage(t *testing.T) {
	const depth, ends = 32, 2 // maximum number of layers; base image and top
	if n := 1 + depth + (depth + ends) + vm.MaxVolumeSlots*(maxLayers+ends); n > ctlsock.MaxFDs {
		t.Errorf("%d descriptors, at most %d", n, ctlsock.MaxFDs)
	}
}
