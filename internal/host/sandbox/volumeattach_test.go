package sandbox

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/host/volume"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// unmount returns the request to unmount a volume.
func unmount(slot int, path string) agentproto.Request {
	return agentproto.Request{Op: agentproto.OpUnmount, Volume: &agentproto.Volume{Slot: slot, Path: path}}
}

// wantVolumes fails the test unless a sandbox has the given volumes in its record and in the VMM,
// and is their writer.
func (w *world) wantVolumes(t *testing.T, what, id string, want ...mounts.Mount) {
	t.Helper()
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	v := w.vmms.Live[w.vmDir(id)]
	stats, err := v.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slots := uint32(0)
	for i, m := range want {
		if !m.IsFree() {
			slots |= 1 << i
		}
	}
	if got := s.Info().Volumes; !slices.Equal(got, mounts.Used(want)) || stats.Volumes != slots {
		t.Errorf("%s: volumes %+v, slots with disks %b, want %+v", what, got, stats.Volumes, want)
	}
	r, err := ledger.Read(w.vmDir(id))
	if err != nil || !slices.Equal(r.Volumes, want) {
		t.Errorf("%s: volumes in the record: %+v, %v", what, r.Volumes, err)
	}
	for _, name := range []string{"a", "b"} {
		writer := ""
		if slices.ContainsFunc(want, func(m mounts.Mount) bool { return m.Name == name && m.Mode == "" }) {
			writer = id
		}
		if got := w.writer(t, name); got != writer {
			t.Errorf("%s: the writer of %s is %q, want %q", what, name, got, writer)
		}
	}
}

func (w *world) mustAttach(t *testing.T, id string, m mounts.Mount) {
	t.Helper()
	if _, err := w.Attach(t.Context(), id, m); err != nil {
		t.Fatal(err)
	}
}

// A volume that is attached to a running sandbox is like a volume that the sandbox has had since
// its fork. A detached volume is free, and keeps the data that the sandbox has written.
func TestAttachedVolumes(t *testing.T) {
	w, guests := newVolumeWorld(t)
	defer w.stop()
	id, a, b := forkOne(t, w, ForkRequest{}), writes("a")[0], mounts.Mount{Name: "b", Path: "/b", Mode: "ro"}
	w.mustBranch(t, id, "before", vm.BranchDiff)
	w.mustAttach(t, id, a)
	w.mustAttach(t, id, b)
	if got := guests.take(); !sameRequests(got, []agentproto.Request{mount(0, "/a", false), mount(1, "/b", true)}) {
		t.Errorf("the guest was told %+v", got)
	}
	w.wantVolumes(t, "attached", id, a, b)
	w.stamp(t, id, 0, 1)
	w.mustBranch(t, id, "with", vm.BranchDiff)
	child := w.forkFrom(t, ForkRequest{Tag: "with"})
	w.wantStamp(t, "a child of the branch", child, 0, 1)
	w.stamp(t, id, 0, 2)
	if _, err := w.Rollback(t.Context(), id, "before", unique.AsBefore); err != nil {
		t.Fatal(err)
	}
	w.wantVolumes(t, "rolled back to a moment before the attach", id, a, b)
	w.wantStamp(t, "rolled back to a moment before the attach", id, 0, 2)
	if _, err := w.Rollback(t.Context(), id, "with", unique.AsBefore); err != nil {
		t.Fatal(err)
	}
	w.wantStamp(t, "rolled back to the branch with the volume", id, 0, 1)
	guests.take()

	for _, name := range []string{"b", "a"} {
		if _, err := w.Detach(t.Context(), id, name); err != nil {
			t.Fatal(err)
		}
	}
	if got := guests.take(); !sameRequests(got, []agentproto.Request{unmount(1, "/b"), unmount(0, "/a")}) {
		t.Errorf("the guest was told %+v", got)
	}
	w.wantVolumes(t, "detached", id)
	if _, err := w.Detach(t.Context(), id, "a"); !errors.As(err, new(*mounts.NotMountedError)) {
		t.Errorf("detach a volume that is not attached: %v", err)
	}
	other := forkOne(t, w, ForkRequest{Volumes: writes("a")})
	w.wantStamp(t, "the next writer", other, 0, 1)
	// The other sandbox writes to the volume now, so the first sandbox gets a copy of the volume in
	// the branch.
	w.stamp(t, other, 0, 3)
	if _, err := w.Rollback(t.Context(), id, "with", unique.AsBefore); err != nil {
		t.Fatal(err)
	}
	w.wantStamp(t, "rolled back to a branch with a detached volume", id, 0, 1)
	w.wantStamp(t, "the next writer afterwards", other, 0, 3)
	for _, sandbox := range []string{id, child, other} {
		if err := w.Kill(sandbox); err != nil {
			t.Error(err)
		}
	}
}

// A sandbox detaches its volumes in any order. The other volumes keep their slots and their data, in
// the sandbox, in its branches, after a suspension and in children. The next volume gets the free slot.
func TestVolumesDetachedInAnyOrder(t *testing.T) {
	w, guests := newVolumeWorld(t)
	defer w.stop()
	a, b, free := writes("a")[0], writes("b")[0], mounts.Mount{Mode: "free"}
	id := forkOne(t, w, ForkRequest{Volumes: append(writes("a"), writes("b")...)})
	w.stamp(t, id, 0, 1)
	w.stamp(t, id, 1, 2)
	w.mustBranch(t, id, "both", vm.BranchDiff)
	guests.take()
	w.mustDetach(t, id, "a")
	if got := guests.take(); !sameRequests(got, []agentproto.Request{unmount(0, a.Path)}) {
		t.Errorf("the guest was told %+v", got)
	}
	w.wantVolumes(t, "the first is detached", id, free, b)
	w.wantStamp(t, "the first is detached", id, 1, 2)
	w.stamp(t, id, 1, 3)
	w.mustBranch(t, id, "second", vm.BranchLive)

	guests.take()
	child := w.forkFrom(t, ForkRequest{Tag: "second", Volumes: writes("a")})
	w.wantStamp(t, "a child's own volume", child, 0, 1)
	w.wantStamp(t, "a child's copy", child, 1, 3)
	if got := guests.take(); !sameRequests(got, []agentproto.Request{mount(0, a.Path, false), mount(1, b.Path, false)}) {
		t.Errorf("the child's guest was told %+v", got)
	}
	if err := w.Kill(child); err != nil {
		t.Fatal(err)
	}

	for _, change := range []func() (Info, error){
		func() (Info, error) { return w.Suspend(t.Context(), id) },
		func() (Info, error) { return w.Resume(t.Context(), id) },
	} {
		if _, err := change(); err != nil {
			t.Fatal(err)
		}
	}
	w.wantVolumes(t, "resumed", id, free, b)
	w.wantStamp(t, "resumed", id, 1, 3)
	if _, err := w.Rollback(t.Context(), id, "both", unique.AsBefore); err != nil {
		t.Fatal(err)
	}
	w.wantVolumes(t, "rolled back to both", id, mounts.Mount{Name: "a", Path: a.Path, Mode: "copy"}, b)
	w.wantStamp(t, "rolled back to both", id, 0, 1)
	w.wantStamp(t, "rolled back to both", id, 1, 2)
	w.mustDetach(t, id, "a") // the copy
	w.mustAttach(t, id, a)
	w.wantVolumes(t, "attached in the free slot", id, a, b)
	w.stamp(t, id, 0, 4)
	if _, err := w.Rollback(t.Context(), id, "second", unique.AsBefore); err != nil {
		t.Fatal(err)
	}
	w.wantVolumes(t, "rolled back to a branch without the first", id, a, b)
	w.wantStamp(t, "the first keeps its content", id, 0, 4)
	w.wantStamp(t, "the second goes back", id, 1, 3)
	w.mustDetach(t, id, "a")
	w.mustDetach(t, id, "b")
	w.wantVolumes(t, "both are detached", id)
}

func (w *world) mustDetach(t *testing.T, id, name string) {
	t.Helper()
	if _, err := w.Detach(t.Context(), id, name); err != nil {
		t.Fatal(err)
	}
}

// After a request that fails, the sandbox has its former volumes, and can be branched.
func TestVolumesThatAreNotAttached(t *testing.T) {
	w, guests := newVolumeWorld(t)
	defer w.stop()
	other := forkOne(t, w, ForkRequest{Volumes: writes("b")})
	id := forkOne(t, w, ForkRequest{})
	for what, c := range map[string]struct {
		m    mounts.Mount
		want any
	}{
		"another writer": {mounts.Mount{Name: "b", Path: "/b"}, new(*volume.InUseError)},
		"no such volume": {mounts.Mount{Name: "c", Path: "/c"}, new(*volume.Error)},
		"no path":        {mounts.Mount{Name: "a"}, new(*invalid.Error)},
	} {
		if _, err := w.Attach(t.Context(), id, c.m); !errors.As(err, c.want) {
			t.Errorf("%s: %v", what, err)
		}
		w.wantOnly(t, what, id, other)
	}
	guests.take()
	guests.err = errors.New("/a is a file")
	var failed *mounts.Error
	if _, err := w.Attach(t.Context(), id, writes("a")[0]); !errors.As(err, &failed) || failed.Op != "mount" {
		t.Errorf("a guest that cannot mount: %v", err)
	}
	guests.err = nil
	w.wantOnly(t, "a guest that cannot mount", id, other)
	w.vmms.VolumeErr = errors.New("no descriptors")
	if _, err := w.Attach(t.Context(), id, writes("a")[0]); !errors.Is(err, w.vmms.VolumeErr) {
		t.Errorf("a VMM that refuses: %v", err)
	}
	w.vmms.VolumeErr = nil
	w.wantOnly(t, "a VMM that refuses", id, other)
	w.mustBranch(t, id, "still", vm.BranchDiff)
	w.mustAttach(t, id, writes("a")[0])
	guests.take()
	busy := errors.New("it is in use by \"sh\"")
	w.vmms.Told = func(req agentproto.Request) error {
		if req.Op == agentproto.OpUnmount {
			return busy
		}
		return guests.receive(req)
	}
	if _, err := w.Detach(t.Context(), id, "a"); !errors.As(err, new(*mounts.BusyError)) {
		t.Errorf("a program uses the volume: %v", err)
	}
	if s, err := w.Get(id); err != nil || len(s.Info().Volumes) != 1 || w.writer(t, "a") != id {
		t.Errorf("after that: %+v, %v", s.Info().Volumes, err)
	}
	w.vmms.Told = guests.receive
	if _, err := w.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Detach(t.Context(), id, "a"); !errors.As(err, new(*StateError)) {
		t.Errorf("a paused sandbox: %v", err)
	}
}

// wantOnly fails the test unless three things are true: the sandbox with the given id has no
// volumes, the volume "a" has no writer, and the sandbox with the id other is the writer of "b".
func (w *world) wantOnly(t *testing.T, what, id, other string) {
	t.Helper()
	s, err := w.Get(id)
	stats, err2 := w.vmms.Live[w.vmDir(id)].Stats(t.Context())
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	list := s.Info().Volumes
	if len(list) != 0 || stats.Volumes != 0 || w.writer(t, "a") != "" || w.writer(t, "b") != other {
		t.Errorf("%s: volumes %+v, slots %b, writers %q and %q", what, list, stats.Volumes, w.writer(t, "a"),
			w.writer(t, "b"))
	}
}

// If a daemon is killed while it attaches or detaches a volume, the sandbox afterwards either has
// the volume or does not have it. A volume in a later slot is not affected.
func TestAttachAndDetachOfKilledDaemons(t *testing.T) {
	a, b := writes("a")[0], writes("b")[0]
	for what, c := range map[string]struct {
		killed func(t *testing.T, w *world, s *Sandbox, with, without []mounts.Mount)
		kept   bool
	}{
		"the record names the volume": {func(t *testing.T, w *world, s *Sandbox, with, _ []mounts.Mount) {
			w.names(t, s, with...)
		}, false},
		"the volume has a writer": {func(t *testing.T, w *world, s *Sandbox, with, _ []mounts.Mount) {
			w.names(t, s, with...)
			f, err := w.volumes.Write(t.Context(), "a", s.id)
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
		}, false},
		"the VM has the volume": {func(t *testing.T, w *world, s *Sandbox, _, _ []mounts.Mount) {
			w.mustAttach(t, s.id, a)
		}, true},
		"detached in the record": {func(t *testing.T, w *world, s *Sandbox, _, without []mounts.Mount) {
			w.mustAttach(t, s.id, a)
			w.names(t, s, without...)
		}, false},
		"detached in the VM": {func(t *testing.T, w *world, s *Sandbox, _, without []mounts.Mount) {
			w.mustAttach(t, s.id, a)
			w.names(t, s, without...)
			if err := s.live.vmm.SetVolume(t.Context(), 1, 0, nil); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		for _, beside := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, beside another: %v", what, beside), func(t *testing.T) {
				with, without := []mounts.Mount{a}, []mounts.Mount(nil)
				w, _ := newVolumeWorld(t)
				id := forkOne(t, w, ForkRequest{})
				if beside {
					with, without = []mounts.Mount{a, b}, []mounts.Mount{{Mode: "free"}, b}
					w.mustAttach(t, id, a)
					w.mustAttach(t, id, b)
					w.stamp(t, id, 1, 7)
					w.mustDetach(t, id, "a")
				}
				s, err := w.Get(id)
				if err != nil {
					t.Fatal(err)
				}
				c.killed(t, w, s, with, without)
				w.stop()
				w.start(t, 0)
				defer w.stop()
				if n, err := w.Recover(); n != 1 || err != nil {
					t.Fatalf("recovered %d sandboxes, %v", n, err)
				}
				w.volumes.Recover(w.Has)
				if c.kept {
					w.wantVolumes(t, "after the restart", id, with...)
				} else {
					w.wantVolumes(t, "after the restart", id, without...)
					w.mustAttach(t, id, a)
				}
				w.mustBranch(t, id, "later", vm.BranchDiff)
				w.mustDetach(t, id, "a")
				w.wantVolumes(t, "detached", id, without...)
				if beside {
					w.wantStamp(t, "the other volume", id, 1, 7)
				}
			})
		}
	}
}

// names writes volumes into the record of a sandbox.
func (w *world) names(t *testing.T, s *Sandbox, list ...mounts.Mount) {
	t.Helper()
	if err := s.update(func(r *ledger.Record) { r.Volumes = list }); err != nil {
		t.Fatal(err)
	}
}

// A sandbox that returns to an earlier suspended state has the volumes of that state. If it has
// attached or detached volumes since then, it is not the writer of these volumes and does not
// change them.
func TestVolumesAttachedSinceASuspension(t *testing.T) {
	w, _ := newVolumeWorld(t)
	defer w.stop()
	id := forkOne(t, w, ForkRequest{Volumes: writes("a")})
	w.stamp(t, id, 0, 1)
	for _, change := range []func() (Info, error){
		func() (Info, error) { return w.Suspend(t.Context(), id) },
		func() (Info, error) { return w.Resume(t.Context(), id) },
		func() (Info, error) { w.stamp(t, id, 0, 2); return w.Detach(t.Context(), id, "a") },
		func() (Info, error) { return w.Attach(t.Context(), id, writes("b")[0]) },
	} {
		if _, err := change(); err != nil {
			t.Fatal(err)
		}
	}
	w.stamp(t, id, 0, 3)
	other := forkOne(t, w, ForkRequest{Volumes: writes("a")})
	v := w.vmms.Live[w.vmDir(id)]
	v.End(vm.Exit{Reason: vm.ExitPanic})
	waitState(t, w, id, Exited)
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.wantStamp(t, "resumed", id, 0, 1)
	w.wantStamp(t, "the volume that was detached", other, 0, 2)
	if a, b := w.writer(t, "a"), w.writer(t, "b"); a != other || b != "" {
		t.Errorf("writers %q and %q", a, b)
	}
	last := forkOne(t, w, ForkRequest{Volumes: writes("b")})
	w.wantStamp(t, "the volume that was attached", last, 0, 3)
}
