package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/host/volume"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// diskDir returns the directory of the volume in a slot of a sandbox. If the sandbox is not the
// volume's writer, it is the directory of the sandbox's copy.
func (w *world) diskDir(id string, slot int, m mounts.Mount) string {
	if m.Mode == record.MountWriter {
		return filepath.Join(w.dir, "volumes", m.Name)
	}
	return filepath.Join(w.cfg.DataDir, id, "volume"+string(rune('0'+slot)))
}

// disk returns the record of the disk in a slot, and the directory of its files.
func (w *world) disk(t *testing.T, id string, slot int) (r record.Volume, dir string) {
	t.Helper()
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	dir = w.diskDir(id, slot, s.record.Volumes[slot])
	p, err := os.ReadFile(filepath.Join(dir, "volume.json"))
	if err == nil {
		err = json.Unmarshal(p, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r, dir
}

// stamp writes one byte to the top of the disk in a slot, as the VM of the sandbox would.
func (w *world) stamp(t *testing.T, id string, slot int, b byte) {
	t.Helper()
	r, dir := w.disk(t, id, slot)
	f, err := os.OpenFile(filepath.Join(dir, r.Writer.Top), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	bitmap, _, _ := disklayer.Layout(r.SizeBytes)
	_, err = f.WriteAt([]byte{b}, 0)
	_, err2 := f.WriteAt([]byte{1}, int64(bitmap))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
}

// stamped returns the byte that the sandbox reads where stamp writes.
func (w *world) stamped(t *testing.T, id string, slot int) byte {
	t.Helper()
	r, dir := w.disk(t, id, slot)
	return stampIn(t, dir, r.Files())
}

// stampIn returns the stamp in the given layers, or 0 if there is none. The oldest layer must be
// first.
func stampIn(t *testing.T, dir string, layers []string) (b byte) {
	t.Helper()
	for _, name := range layers {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		l, err := disklayer.Open(f)
		if err != nil {
			t.Fatal(err)
		}
		if l.Has(0) {
			p := make([]byte, 1)
			if _, err := f.ReadAt(p, 0); err != nil {
				t.Fatal(err)
			}
			b = p[0]
		}
		if err := errors.Join(l.Close(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (w *world) wantStamp(t *testing.T, what, id string, slot int, want byte) {
	t.Helper()
	if got := w.stamped(t, id, slot); got != want {
		t.Errorf("%s: the volume has %d, want %d", what, got, want)
	}
}

func (w *world) mustBranch(t *testing.T, id, tag string, mode vm.BranchMode) {
	t.Helper()
	if _, err := w.Branch(t.Context(), id, BranchRequest{Tag: tag, Mode: mode}); err != nil {
		t.Fatal(err)
	}
}

// forkFrom starts one child.
func (w *world) forkFrom(t *testing.T, req ForkRequest) string {
	t.Helper()
	req.N = 1
	r, err := w.Fork(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return r.Sandboxes[0].ID
}

// A snapshot has the content of the volumes at the instant of the branch. The children of the snapshot
// get copies of that content, and a rollback restores it. Neither needs the original volume or its
// sandbox.
func TestBranchesHaveVolumes(t *testing.T) {
	w, guests := newVolumeWorld(t)
	defer w.stop()
	id := forkOne(t, w, ForkRequest{Volumes: []mounts.Mount{{Name: "a", Path: "/a"}, {Name: "b", Path: "/b", Mode: "ro"}}})
	for i, mode := range []vm.BranchMode{vm.BranchFull, vm.BranchLive, vm.BranchDiff} {
		w.stamp(t, id, 0, byte(10+i))
		w.stamp(t, id, 1, byte(20+i))
		w.mustBranch(t, id, mode.String(), mode)
	}
	w.stamp(t, id, 0, 9)
	if writer := w.writer(t, "a"); writer != id {
		t.Errorf("after a branch: writer %q", writer)
	}
	guests.take()
	children, err := w.Fork(t.Context(), ForkRequest{Tag: "live", N: 2})
	if err != nil {
		t.Fatal(err)
	}
	want := []mounts.Mount{{Name: "a", Path: "/a", Mode: "copy"}, {Name: "b", Path: "/b", Mode: "ro"}}
	for _, c := range children.Sandboxes {
		if !slices.Equal(c.Volumes, want) {
			t.Errorf("a child has %+v", c.Volumes)
		}
		w.wantStamp(t, "a child", c.ID, 0, 11)
		w.wantStamp(t, "a reader of a child", c.ID, 1, 21)
		w.stamp(t, c.ID, 0, 99) // only in its copy
	}
	// A child can be branched, too.
	w.mustBranch(t, children.Sandboxes[0].ID, "grandchild", vm.BranchDiff)
	grandchild := w.forkFrom(t, ForkRequest{Tag: "grandchild"})
	w.wantStamp(t, "a child of a child", grandchild, 0, 99)

	for _, c := range []struct {
		tag  string
		want byte
	}{{"full", 10}, {"diff", 12}, {"live", 11}} {
		if _, err := w.Rollback(t.Context(), id, c.tag, unique.AsBefore); err != nil {
			t.Fatal(err)
		}
		w.wantStamp(t, "a rollback to "+c.tag, id, 0, c.want)
		w.wantStamp(t, "a reader after a rollback to "+c.tag, id, 1, c.want+10)
		w.stamp(t, id, 0, 50)
	}
	w.wantStamp(t, "a child after the rollback of its parent", children.Sandboxes[1].ID, 0, 99)
	if err := w.Kill(id); err != nil {
		t.Fatal(err)
	}
	r, dir := record.Volume{}, filepath.Join(w.dir, "volumes", "a")
	p, err := os.ReadFile(filepath.Join(dir, "volume.json"))
	if err := errors.Join(err, json.Unmarshal(p, &r)); err != nil || r.Writer != nil || stampIn(t, dir, r.Layers) != 50 {
		t.Errorf("the volume afterwards: %+v, %v", r, err)
	}
	if err := w.volumes.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	w.wantStamp(t, "a fork without the volume", w.forkFrom(t, ForkRequest{Tag: "full"}), 0, 10)
	if err := w.Snapshots().Verify(t.Context(), "full"); err != nil {
		t.Error(err)
	}
	if _, err := w.Snapshots().Export(t.Context(), "full"); !errors.As(err, new(*failure.VolumesError)) {
		t.Errorf("an archive of a snapshot with volumes: %v", err)
	}
	w.KillAll()
	w.checkClean(t)
}

// If a sandbox has no volume in a slot, a rollback gives it a copy of the snapshot's volume. If a
// sandbox writes to a volume that the snapshot lacks, the volume keeps its present content, and the
// guest unmounts it and mounts it again.
func TestRollbacksToOtherVolumes(t *testing.T) {
	w, guests := newVolumeWorld(t)
	defer w.stop()
	bare := forkOne(t, w, ForkRequest{})
	w.mustBranch(t, bare, "bare", vm.BranchDiff)
	id := w.forkFrom(t, ForkRequest{Tag: "bare", Volumes: writes("a")})
	w.stamp(t, id, 0, 1)
	w.mustBranch(t, id, "one", vm.BranchDiff)
	w.stamp(t, id, 0, 2)
	if _, err := w.Rollback(t.Context(), bare, "one", unique.AsBefore); err != nil {
		t.Fatal(err)
	}
	w.wantStamp(t, "a copy", bare, 0, 1)
	guests.take()
	if _, err := w.Rollback(t.Context(), id, "bare", unique.AsBefore); err != nil {
		t.Fatal(err)
	}
	w.wantStamp(t, "present content", id, 0, 2)
	if r, _ := w.disk(t, id, 0); r.Writer.Next != "" {
		t.Errorf("two tops are left: %+v", r)
	}
	want := []agentproto.Request{{Op: agentproto.OpUnmount, Volume: &agentproto.Volume{Path: "/a"}}, mount(0, "/a", false)}
	if got := guests.take(); !sameRequests(got, want) {
		t.Errorf("the guest was told %+v, want %+v", got, want)
	}
	w.stamp(t, id, 0, 3)
	// The writer's volume gets the content of the other sandbox's copy.
	w.stamp(t, bare, 0, 7)
	if _, err := w.Promote(t.Context(), id, bare, BranchRequest{}, unique.AsBefore); err != nil {
		t.Fatal(err)
	}
	w.wantStamp(t, "a promoted copy", id, 0, 7)
	if writer := w.writer(t, "a"); writer != id {
		t.Errorf("writer %q", writer)
	}
	// A rollback is refused if the slot has another volume than the snapshot. It then changes
	// nothing.
	other := forkOne(t, w, ForkRequest{Volumes: writes("b")})
	w.stamp(t, other, 0, 8)
	if _, err := w.Rollback(t.Context(), other, "one", unique.AsBefore); !errors.As(err, new(*mounts.HeldError)) {
		t.Errorf("another volume: %v", err)
	}
	w.wantStamp(t, "a refused rollback", other, 0, 8)
	w.KillAll()
	w.checkClean(t)
}

// A suspended sandbox stays the writer of its volumes. When the sandbox is resumed, the volumes get the
// content that they had at the suspension, even if another daemon resumes the sandbox, and even if its VM
// was lost in the meantime.
func TestSuspendedSandboxesKeepVolumes(t *testing.T) {
	w, guests := newVolumeWorld(t)
	list := []mounts.Mount{{Name: "a", Path: "/a"}, {Name: "b", Path: "/b", Mode: "copy"}}
	id := forkOne(t, w, ForkRequest{Volumes: list})
	w.stamp(t, id, 0, 1)
	w.stamp(t, id, 1, 2)
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	var used *volume.InUseError
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, Volumes: writes("a")}); !errors.As(err, &used) ||
		used.SandboxID != id {
		t.Errorf("a second writer: %v", err)
	}
	w.stop()
	w.start(t, 0)
	defer w.stop()
	if n, err := w.Recover(); n != 1 || err != nil {
		t.Fatalf("recovered %d sandboxes, %v", n, err)
	}
	w.volumes.Recover(w.Has)
	guests.take()
	for what := range []int{0, 1} {
		if _, err := w.Resume(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if got := guests.take(); !sameRequests(got, []agentproto.Request{mount(0, "/a", false), mount(1, "/b", false)}) {
			t.Errorf("the guest was told %+v", got)
		}
		w.wantStamp(t, "a resumed writer", id, 0, 1)
		w.wantStamp(t, "a resumed copy", id, 1, 2)
		if what == 1 {
			break
		}
		w.stamp(t, id, 0, 5)
		w.vmms.Live[w.vmDir(id)].End(vm.Exit{Reason: vm.ExitPanic})
		waitState(t, w, id, Exited)
	}
	w.stamp(t, id, 0, 6)
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	r, dir := w.disk(t, id, 0)
	if r.Writer == nil || r.Writer.Top != "" || stampIn(t, dir, r.Layers) != 6 {
		t.Errorf("suspended: %+v", r)
	}
	// A copy of the suspended sandbox has the volumes too.
	err := w.With(t.Context(), id, func(h *Held) error { _, err := h.Copy(t.Context(), "copy"); return err })
	if err != nil {
		t.Fatal(err)
	}
	w.wantStamp(t, "a fork of the copy", w.forkFrom(t, ForkRequest{Tag: "copy"}), 0, 6)
	if err := w.Kill(id); err != nil {
		t.Fatal(err)
	}
	if writer := w.writer(t, "a"); writer != "" {
		t.Errorf("after the deletion: writer %q", writer)
	}
	w.KillAll()
	w.checkClean(t)
}

// A disk-only branch cannot include volumes. It is refused before its hook runs.
func TestDiskOnlyBranchesRefuseVolumes(t *testing.T) {
	w, _ := newVolumeWorld(t)
	defer w.stop()
	// This hook would fail, because a fake VM has no guest.
	hooks := snapshot.Hooks{BeforeBranch: &snapshot.Hook{Args: []string{"false"}, TimeoutSecs: 1,
		OnFailure: snapshot.HookAborts}}
	id := forkOne(t, w, ForkRequest{Volumes: writes("a"), Hooks: &hooks})
	_, err := w.Branch(t.Context(), id, BranchRequest{Tag: "b", Mode: vm.BranchDisk})
	if !errors.As(err, new(*mounts.HeldError)) {
		t.Errorf("%v", err)
	}
	w.KillAll()
	w.checkClean(t)
}

// The number of a volume's layers is bounded.
func TestBranchesMergeLayersOfVolumes(t *testing.T) {
	w, _ := newVolumeWorld(t)
	defer w.stop()
	id := forkOne(t, w, ForkRequest{Volumes: writes("a")})
	for i := range 40 {
		w.stamp(t, id, 0, byte(i+1))
		tag := "b" + string(rune('a'+i%26))
		if i >= 26 {
			tag += "2"
		}
		w.mustBranch(t, id, tag, vm.BranchDiff)
		if r, dir := w.disk(t, id, 0); len(r.Layers) >= 20 || stampIn(t, dir, r.Layers) != byte(i+1) {
			t.Fatalf("after %d branches: %d layers", i+1, len(r.Layers))
		}
	}
	w.wantStamp(t, "the first branch", w.forkFrom(t, ForkRequest{Tag: "ba"}), 0, 1)
	w.wantStamp(t, "the last branch", w.forkFrom(t, ForkRequest{Tag: "bn2"}), 0, 40)
	w.KillAll()
	w.checkClean(t)
}

// The daemon can make a disk-only branch for a comparison of root disks, even if the sandbox has
// volumes.
func TestRootDisksBesideVolumes(t *testing.T) {
	w, _ := newVolumeWorld(t)
	defer w.stop()
	id := forkOne(t, w, ForkRequest{Volumes: writes("a")})
	own := BranchRequest{Tag: "own", Mode: vm.BranchDisk, NoHooks: true}
	if r, err := w.Branch(t.Context(), id, own); err != nil || !r.Info.DiskOnly {
		t.Fatalf("%+v, %v", r.Info, err)
	}
	w.stamp(t, id, 0, 1)
	w.mustBranch(t, id, "memory", vm.BranchDiff)
	child := w.forkFrom(t, ForkRequest{Tag: "memory"})
	own.Tag = "child"
	if _, err := w.Branch(t.Context(), child, own); err != nil {
		t.Error(err)
	}
	w.wantStamp(t, "a child afterwards", child, 0, 1)
	w.KillAll()
	w.checkClean(t)
}

// Branches that do not merge the layers of volumes do not prevent later branches.
func TestBranchesWithoutMerges(t *testing.T) {
	w, _ := newVolumeWorld(t)
	defer w.stop()
	id := forkOne(t, w, ForkRequest{Volumes: writes("a")})
	for i := range 40 {
		own := BranchRequest{Tag: fmt.Sprint("d", i), Mode: vm.BranchDisk, NoHooks: true} // these save no volumes
		if _, err := w.Branch(t.Context(), id, own); err != nil {
			t.Fatalf("branch %d: %v", i, err)
		}
		w.stamp(t, id, 0, byte(i))
	}
	w.mustBranch(t, id, "b", vm.BranchDiff)
	w.wantStamp(t, "a child", w.forkFrom(t, ForkRequest{Tag: "b"}), 0, 39)
	w.KillAll()
	w.checkClean(t)
}

// While the hook of a resumed sandbox runs, the sandbox holds no place for restores.
func TestResumedVolumesHoldNoPlace(t *testing.T) {
	w, _ := newVolumeWorld(t)
	defer w.stop()
	guest := sleeper{vmfake.Guest{All: w.vmms}, make(chan struct{}, 10)}
	w.Manager.cfg.Guest = func(string, string) Guest { return guest }
	endless := &snapshot.Hook{Args: []string{"sleep", "300"}, TimeoutSecs: 300, OnFailure: snapshot.HookContinues}
	id := forkOne(t, w, ForkRequest{Volumes: writes("a"), Hooks: &snapshot.Hooks{AfterResume: endless}})
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := w.Resume(t.Context(), id)
		done <- err
	}()
	<-guest.runs
	if taken, _ := w.restores.Count(); taken != 0 {
		t.Errorf("%d places are taken", taken)
	}
	if err := w.Kill(id); err != nil {
		t.Fatal(err)
	}
	<-done
	w.checkClean(t)
}
