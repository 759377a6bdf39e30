package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/host/volume"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// volumeCalls has the requests about volumes that guests have received.
type volumeCalls struct {
	mu   sync.Mutex
	list []agentproto.Request
	err  error // answer to the next requests to mount a volume
}

func (o *volumeCalls) receive(req agentproto.Request) error {
	if req.Volume == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, req)
	if req.Op == agentproto.OpMount {
		return o.err
	}
	return nil
}

// take returns the requests since the previous call of take.
func (o *volumeCalls) take() (list []agentproto.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	list, o.list = o.list, nil
	return list
}

// newVolumeWorld returns a world with a parent that has two volume slots, and the volumes "a" and "b".
func newVolumeWorld(t *testing.T) (*world, *volumeCalls) {
	t.Helper()
	w, guests := newWorld(t, 0), &volumeCalls{}
	w.vmms.Told = guests.receive
	w.bake.VolumeSlots = 2
	mustBake(t, w)
	for _, name := range []string{"a", "b"} {
		if _, err := w.volumes.Create(volume.Request{Name: name, Owner: "local", SizeMiB: 16}); err != nil {
			t.Fatal(err)
		}
	}
	return w, guests
}

func (w *world) writer(t *testing.T, name string) string {
	t.Helper()
	i, err := w.volumes.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return i.Writer
}

func writes(name string) []mounts.Mount { return []mounts.Mount{{Name: name, Path: "/" + name}} }

// mount returns the request to mount a volume.
func mount(slot int, path string, readOnly bool) agentproto.Request {
	v := agentproto.Volume{Slot: slot, Path: path, ReadOnly: readOnly}
	return agentproto.Request{Op: agentproto.OpMount, Volume: &v}
}

func sameRequests(a, b []agentproto.Request) bool {
	return slices.EqualFunc(a, b, func(a, b agentproto.Request) bool { return a.Op == b.Op && *a.Volume == *b.Volume })
}

// A sandbox gets its volumes in the first slots and mounts them. Until the sandbox is deleted, it
// is the writer of each volume that is not read-only. Before its VM is killed, its guest is told to
// unmount that volume.
func TestVolumes(t *testing.T) {
	w, guests := newVolumeWorld(t)
	defer w.stop()
	list := []mounts.Mount{{Name: "b", Path: "/b", Mode: "ro"}, {Name: "a", Path: "/srv/a"}}
	id := forkOne(t, w, ForkRequest{Volumes: list})
	want := []agentproto.Request{mount(0, "/b", true), mount(1, "/srv/a", false)}
	if got := guests.take(); !sameRequests(got, want) {
		t.Errorf("the guest was told %+v, want %+v", got, want)
	}
	slot := vmmproto.Disk{SizeBytes: 16 << 20, Layers: 2, Volume: true}
	if got := w.vmms.Disks[len(w.vmms.Disks)-1]; len(got) != 3 || got[1] != slot || got[2] != slot {
		t.Errorf("disks %+v", got)
	}
	if a, b := w.writer(t, "a"), w.writer(t, "b"); a != id || b != "" {
		t.Errorf("writers %q and %q", a, b)
	}
	var used *volume.InUseError
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, Volumes: writes("a")}); !errors.As(err, &used) ||
		used.SandboxID != id {
		t.Errorf("a second writer: %v", err)
	}
	alive := true
	w.vmms.Killing = func() {
		alive = false
		if w.writer(t, "a") != id {
			t.Error("the volume is free although the VM has not ended")
		}
	}
	w.vmms.Told = func(req agentproto.Request) error {
		if !alive {
			t.Error("a request to a VM that has ended")
		}
		return guests.receive(req)
	}
	if err := w.Kill(id); err != nil {
		t.Fatal(err)
	}
	want = []agentproto.Request{{Op: agentproto.OpUnmount, Volume: &agentproto.Volume{Slot: 1, Path: "/srv/a"}}}
	if got := guests.take(); !sameRequests(got, want) {
		t.Errorf("at the end the guest was told %+v, want %+v", got, want)
	}
	if writer := w.writer(t, "a"); writer != "" {
		t.Errorf("after the end: writer %q", writer)
	}
	w.checkClean(t)
}

// If a guest cannot mount a volume, or its VM cannot be restored, nothing is left of the fork.
func TestVolumesOfAForkThatFails(t *testing.T) {
	w, guests := newVolumeWorld(t)
	defer w.stop()
	guests.err = errors.New("/a is a file")
	var failed *mounts.Error
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, Volumes: writes("a")}); !errors.As(err, &failed) {
		t.Errorf("a guest that cannot mount: %v", err)
	}
	guests.err = nil
	w.vmms.RestoreErr = func(int) error { return errors.New("no memory") }
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, Volumes: writes("a")}); err == nil {
		t.Error("a restore that fails")
	}
	if writer := w.writer(t, "a"); writer != "" {
		t.Errorf("writer %q", writer)
	}
	w.checkClean(t)
}

// The next daemon takes over a sandbox with its volumes, and tells the guest to mount them again.
// If the VM has ended in the meantime, the volumes are free.
func TestVolumesAfterARestart(t *testing.T) {
	w, guests := newVolumeWorld(t)
	list := []mounts.Mount{{Name: "a", Path: "/a"}, {Name: "b", Path: "/b", Mode: "copy"}}
	id := forkOne(t, w, ForkRequest{Volumes: list})
	lost := forkOne(t, w, ForkRequest{Volumes: writes("b")})
	v := w.vmms.Live[w.vmDir(lost)]
	w.stop()
	v.End(vm.Exit{Reason: vm.ExitPanic})
	guests.take()
	w.start(t, 0)
	defer w.stop()
	if n, err := w.Recover(); n != 1 || err != nil {
		t.Fatalf("recovered %d sandboxes, %v", n, err)
	}
	w.volumes.Recover(w.Has)
	if a, b := w.writer(t, "a"), w.writer(t, "b"); a != id || b != "" {
		t.Errorf("writers %q and %q", a, b)
	}
	want := []agentproto.Request{mount(0, "/a", false), mount(1, "/b", false)}
	if got := guests.take(); !sameRequests(got, want) {
		t.Errorf("the guest was told %+v, want %+v", got, want)
	}
	s, err := w.Get(id)
	if err != nil || len(s.Info().Volumes) != 2 {
		t.Fatal(err)
	}
	if err := w.Kill(id); err != nil {
		t.Fatal(err)
	}
	if writer := w.writer(t, "a"); writer != "" {
		t.Errorf("after the end: writer %q", writer)
	}
	w.checkClean(t)
}

// A volume is free when the VM of its writer has ended by itself.
func TestVolumesOfAVMThatEnds(t *testing.T) {
	w, _ := newVolumeWorld(t)
	defer w.stop()
	id := forkOne(t, w, ForkRequest{Volumes: writes("a")})
	w.vmms.Live[w.vmDir(id)].End(vm.Exit{Reason: vm.ExitPanic})
	for deadline := time.Now().Add(30 * time.Second); w.writer(t, "a") != ""; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the volume keeps its writer")
		}
	}
	if err := w.Kill(id); err != nil {
		t.Fatal(err)
	}
	w.checkClean(t)
}

// Requests that cannot be satisfied are refused before anything is started.
func TestVolumesThatAreRefused(t *testing.T) {
	w, _ := newVolumeWorld(t)
	defer w.stop()
	var slots *mounts.SlotsError
	if _, err := w.volumes.Create(volume.Request{Name: "third", Owner: "local", SizeMiB: 16}); err != nil {
		t.Fatal(err)
	}
	three := append(writes("a"), append(writes("b"), writes("third")...)...)
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, Volumes: three}); !errors.As(err, &slots) ||
		slots.Slots != 2 || slots.Wanted != 3 {
		t.Errorf("more volumes than slots: %v", err)
	}
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, Volumes: writes("c")}); !errors.As(err,
		new(*volume.Error)) {
		t.Errorf("no such volume: %v", err)
	}
	for what, req := range map[string]ForkRequest{
		"two writers": {Tag: "p", N: 2, Volumes: writes("a")},
	} {
		if _, err := w.Fork(t.Context(), req); !errors.As(err, new(*invalid.Error)) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := w.vmms.Spawned; n != 1 {
		t.Errorf("%d VMs were started, want that of the parent", n)
	}
	w.checkClean(t)
}

// logCalls is a log handler: a function that is called with each line.
type logCalls func(line string)

func (f logCalls) Enabled(context.Context, slog.Level) bool      { return true }
func (f logCalls) Handle(_ context.Context, r slog.Record) error { f(r.Message); return nil }
func (f logCalls) WithAttrs([]slog.Attr) slog.Handler            { return f }
func (f logCalls) WithGroup(string) slog.Handler                 { return f }

// On a full disk, the release of a volume needs the space that the sandbox's own files take. So
// these files are removed first.
func TestFilesAreRemovedBeforeVolumesAreReleased(t *testing.T) {
	w, _ := newVolumeWorld(t)
	w.stop()
	var id string
	var lines []string
	w.volumesLog = logCalls(func(line string) {
		if _, err := os.Stat(filepath.Join(w.cfg.DataDir, id)); err == nil {
			t.Error("the files of the sandbox exist")
		}
		lines = append(lines, line)
	})
	w.start(t, 0)
	defer w.stop()
	id = forkOne(t, w, ForkRequest{Volumes: writes("a")})
	if _, err := os.Stat(filepath.Join(w.cfg.DataDir, id)); err != nil {
		t.Fatal(err)
	}
	tops, err := filepath.Glob(filepath.Join(w.dir, "volumes", "a", "*.layer"))
	if err != nil || len(tops) != 1 {
		t.Fatal(tops, err)
	}
	// The release writes a line to the log, because the top is damaged.
	if err := errors.Join(os.Truncate(tops[0], 0), w.Kill(id)); err != nil {
		t.Fatal(err)
	}
	if len(lines) != 1 {
		t.Errorf("log lines %q", lines)
	}
}

// Children that wait for the lock of a volume hold no place for restores, and end when their
// request ends.
func TestWaitsForVolumesTakeNoPlaces(t *testing.T) {
	w, _ := newVolumeWorld(t)
	defer w.stop()
	locked, unlock := make(chan bool), make(chan bool)
	w.room = func() { close(locked); <-unlock }
	snapshot := make(chan error)
	go func() {
		_, err := w.volumes.Snapshot(t.Context(), "a", volume.Request{Name: "c", Owner: "local"})
		snapshot <- err
	}()
	<-locked
	ctx, cancel := context.WithCancel(t.Context())
	forked := make(chan error)
	go func() {
		list := []mounts.Mount{{Name: "a", Path: "/a", Mode: "copy"}}
		_, err := w.Fork(ctx, ForkRequest{Tag: "p", N: 3, Volumes: list})
		forked <- err
	}()
	deadline := time.After(time.Minute)
	for {
		files, err := filepath.Glob(filepath.Join(w.cfg.DataDir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := w.restores.Count(); len(files) == 3 && n == 0 {
			break
		}
		select {
		case <-deadline:
			n, _ := w.restores.Count()
			t.Fatalf("%d children have %d places", len(files), n)
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	if err := <-forked; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	close(unlock)
	if err := <-snapshot; err != nil {
		t.Error(err)
	}
	w.checkClean(t)
}

// When all sandboxes are killed, all guests with volumes unmount them at the same time. So the
// daemon waits only once for all guests that do not answer.
func TestAllGuestsUnmountAtOnce(t *testing.T) {
	w, _ := newVolumeWorld(t)
	defer w.stop()
	const n = vmpool.AtOnce + 1
	for i := range n {
		name := fmt.Sprint("v", i)
		if _, err := w.volumes.Create(volume.Request{Name: name, Owner: "local", SizeMiB: 16}); err != nil {
			t.Fatal(err)
		}
		forkOne(t, w, ForkRequest{Volumes: writes(name)})
	}
	var asked atomic.Int32
	all := make(chan bool)
	w.vmms.Told = func(req agentproto.Request) error {
		if req.Op == agentproto.OpUnmount {
			if asked.Add(1) == n {
				close(all)
			}
			<-all
		}
		return nil
	}
	w.vmms.Killing = func() { // without an answer, a VM is killed after some seconds
		if got := asked.Load(); got < n {
			t.Errorf("a VM is killed when %d of %d guests were asked", got, n)
		}
	}
	w.KillAll()
	w.checkClean(t)
}
