package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// asked is a guest that records requests. It returns an error for the requests that the test has
// chosen.
type asked struct {
	mu    sync.Mutex
	ops   []agentproto.Op
	fails agentproto.Op
}

func (a *asked) hear(req agentproto.Request) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ops = append(a.ops, req.Op)
	if req.Op == a.fails {
		return errors.New("odd")
	}
	return nil
}

func (a *asked) take() []agentproto.Op {
	a.mu.Lock()
	defer a.mu.Unlock()
	ops := a.ops
	a.ops = nil
	return ops
}

// boots enables the manager to boot disk-only snapshots. It returns a function that returns the
// number of boots.
func (w *world) boots(t *testing.T) func() int {
	t.Helper()
	n := 0
	w.SetBoot(func(ctx context.Context, from, to string) error {
		n++
		_, err := w.Bake(ctx, bake.Request{Tag: to, From: from, Transient: true})
		return err
	})
	return func() int { return n }
}

// A disk-only branch contains no memory. It changes neither the sandbox nor later branches. Forks
// of a disk-only branch boot.
func TestBranchOfTheDisk(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	guest := &asked{}
	w.vmms.Told = guest.hear
	booted := w.boots(t)
	id := w.source(t)
	w.branch(t, id, "before", vm.BranchLive)
	guest.take()
	r := w.branch(t, id, "disk", vm.BranchDisk)
	if ops := guest.take(); !slices.Equal(ops, []agentproto.Op{agentproto.OpFreeze, agentproto.OpThaw}) {
		t.Errorf("the guest was asked for %v", ops)
	}
	if !r.Info.DiskOnly || r.Info.Branch.Mode != "disk" || r.Figure.DirtyBytes != 0 || r.Info.InRAM {
		t.Errorf("%+v", r)
	}
	if memory, disk := w.layers(t, "disk"); memory != 0 || disk != 3 {
		t.Errorf("%d layers of memory, %d of the disk", memory, disk)
	}
	w.branch(t, id, "after", vm.BranchLive)
	if memory, disk := w.layers(t, "after"); memory != 3 || disk != 4 {
		t.Errorf("the next branch has %d layers of memory, %d of the disk", memory, disk)
	}
	if i := w.info(t, id); i.At.Tag != "after" {
		t.Errorf("the sandbox is at %+v", i.At)
	}
	var none *store.DiskOnlyError
	if _, err := w.Rollback(t.Context(), id, "disk", unique.AsBefore); !errors.As(err, &none) {
		t.Errorf("rolled back to it: %v", err)
	}

	f, err := w.Fork(t.Context(), ForkRequest{Tag: "disk", N: 2})
	if err != nil {
		t.Fatal(err)
	}
	tag := f.Sandboxes[0].SnapshotTag
	if !strings.HasPrefix(tag, "boot-") || f.Sandboxes[1].SnapshotTag != tag || booted() != 1 {
		t.Errorf("%d boots, %+v", booted(), f.Sandboxes)
	}
	if memory, disk := w.layers(t, tag); memory != 1 || disk != 4 {
		t.Errorf("what was booted has %d layers of memory, %d of the disk", memory, disk)
	}
	w.branch(t, f.Sandboxes[0].ID, "child", vm.BranchDisk)
	for _, s := range f.Sandboxes {
		if err := w.Kill(s.ID); err != nil {
			t.Fatal(err)
		}
	}
	w.Snapshots().Quiesce()
	var gone *store.NotFoundError
	if _, err := w.Snapshots().Detail(tag); !errors.As(err, &gone) {
		t.Errorf("the parent is left: %v", err)
	}
	if err := w.Snapshots().Verify(t.Context(), "child"); err != nil {
		t.Error(err)
	}
	w.KillAll()
	w.checkClean(t)
}

// A build sets a default user, directory and variables. The memory of a snapshot contains these
// defaults. A fork of a disk-only snapshot receives the defaults when the fork boots. If the fork
// is branched later, forks of these branches also have the defaults. If the disk does not have the
// default user's account, the fork boots nevertheless.
func TestDefaultsOutliveTheMemory(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	guest := &asked{}
	w.vmms.Told = guest.hear
	w.boots(t)
	branch := func(id, tag string, mode vm.BranchMode, set snapshot.Defaults) {
		t.Helper()
		if _, err := w.Branch(t.Context(), id, BranchRequest{Tag: tag, Mode: mode, Defaults: set}); err != nil {
			t.Fatal(err)
		}
	}
	fork := func(tag string) string {
		t.Helper()
		f, err := w.Fork(t.Context(), ForkRequest{Tag: tag, N: 1})
		if err != nil {
			t.Fatal(err)
		}
		return f.Sandboxes[0].ID
	}
	want := snapshot.Defaults{Env: map[string]string{"MODE": "built"}, User: "app", Dir: "/srv"}
	branch(w.source(t), "built", vm.BranchLive, want)
	branch(fork("built"), "disk", vm.BranchDisk, snapshot.Defaults{})
	for _, step := range []struct{ from, lacks, user, branch string }{
		{"disk", "", "app", "again"}, {"again", "app", "", "lacking"}, {"lacking", "", "app", "last"},
	} {
		w.vmms.Defaults, w.vmms.Forked, w.vmms.NoUser = nil, nil, step.lacks
		id := fork(step.from)
		if got := w.vmms.Defaults; len(got) != 1 || got[0].User != step.user || got[0].Dir != want.Dir {
			t.Errorf("%s: the guest that was booted has %+v", step.from, got)
		}
		if got := w.vmms.Forked[0].Env; !maps.Equal(got, want.Env) {
			t.Errorf("%s: the guest that was booted has the variables %v", step.from, got)
		}
		branch(id, step.branch, vm.BranchDisk, snapshot.Defaults{})
	}
	w.KillAll()
}

func (w *world) info(t *testing.T, id string) Info {
	t.Helper()
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	return s.Info()
}

// If the host has no room for the children, no parent is booted for them.
func TestNothingIsBootedInVain(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.admit = admit.Rules{MaxSandboxes: 2}
	w.stop()
	w.start(t, 0)
	booted := w.boots(t)
	w.branch(t, w.source(t), "disk", vm.BranchDisk)
	var refused *admit.Error
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "disk", N: 2}); !errors.As(err, &refused) || booted() != 0 {
		t.Errorf("%v, %d boots", err, booted())
	}
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "disk", N: 1}); err != nil || booted() != 1 {
		t.Errorf("%v, %d boots", err, booted())
	}
}

// If a guest cannot freeze its file system, or thaws it too early, the branch leaves no snapshot.
// The sandbox continues.
func TestRestThatFails(t *testing.T) {
	for _, fails := range []agentproto.Op{agentproto.OpFreeze, agentproto.OpThaw} {
		t.Run(string(fails), func(t *testing.T) {
			w := newWorld(t, 0)
			defer w.stop()
			guest := &asked{fails: fails}
			w.vmms.Told = guest.hear
			id := w.source(t)
			_, err := w.Branch(t.Context(), id, BranchRequest{Tag: "disk", Mode: vm.BranchDisk})
			if err == nil || !strings.Contains(err.Error(), "agent "+string(fails)) {
				t.Errorf("branched: %v", err)
			}
			var none *store.NotFoundError
			if _, err := w.Snapshots().Detail("disk"); !errors.As(err, &none) {
				t.Errorf("it is there: %v", err)
			}
			guest.fails = ""
			w.branch(t, id, "disk", vm.BranchDisk)
			w.branch(t, id, "whole", vm.BranchLive)
			w.KillAll()
			w.checkClean(t)
		})
	}
}

// A daemon was killed while a guest's file system was frozen. The next daemon's branch must not fail
// because of that, and it must freeze the file system itself.
func TestRestOfAKilledDaemon(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	var mu sync.Mutex
	var ops []agentproto.Op
	frozen := true
	w.vmms.Told = func(req agentproto.Request) error {
		mu.Lock()
		defer mu.Unlock()
		freeze := req.Op == agentproto.OpFreeze
		if !freeze && req.Op != agentproto.OpThaw {
			return nil
		}
		ops = append(ops, req.Op)
		if frozen == freeze {
			return fmt.Errorf("%s: the file system is so already", req.Op)
		}
		frozen = freeze
		return nil
	}
	w.branch(t, id, "disk", vm.BranchDisk)
	mu.Lock()
	defer mu.Unlock()
	want := []agentproto.Op{agentproto.OpFreeze, agentproto.OpThaw, agentproto.OpFreeze, agentproto.OpThaw}
	if !slices.Equal(ops, want) {
		t.Errorf("the guest was asked for %v, want %v", ops, want)
	}
}

// A disk-only branch of a paused sandbox fails, because a paused guest cannot freeze its file
// system. If the VMM fails, the file system is thawed.
func TestBranchOfTheDiskRefused(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	guest := &asked{}
	w.vmms.Told = guest.hear
	id := w.source(t)
	if _, err := w.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	var state *StateError
	if _, err := w.Branch(t.Context(), id, BranchRequest{Tag: "d", Mode: vm.BranchDisk}); !errors.As(err, &state) {
		t.Errorf("paused: %v", err)
	}
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	guest.take()
	w.vmms.BranchErr = errors.New("odd")
	if _, err := w.Branch(t.Context(), id, BranchRequest{Tag: "d", Mode: vm.BranchDisk}); err == nil {
		t.Error("branched")
	}
	if ops := guest.take(); !slices.Equal(ops, []agentproto.Op{agentproto.OpFreeze, agentproto.OpThaw}) {
		t.Errorf("the guest was asked for %v", ops)
	}
	w.vmms.BranchErr = nil
	w.branch(t, id, "d", vm.BranchDisk)
}

// Values that a bake's request omits are taken from the snapshot that the bake boots from.
func TestBakeFromADisk(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.boots(t)
	w.bake.Env, w.bake.MemoryMiB, w.bake.VCPUs = map[string]string{"A": "1", "B": "1"}, 256, 2
	id := w.source(t)
	w.branch(t, id, "disk", vm.BranchDisk)
	for _, c := range []struct {
		req   bake.Request
		field string // field that the error must name
		want  string
	}{
		{req: bake.Request{}, want: "256 MiB, 2 vCPUs, 1 1"},
		{req: bake.Request{MemoryMiB: 128, VCPUs: 1, Env: map[string]string{"B": "2"}}, want: "128 MiB, 1 vCPUs, 1 2"},
		{req: bake.Request{Kernel: w.bake.Kernel, Initrd: w.bake.Initrd}, want: "256 MiB, 2 vCPUs, 1 1"},
		{req: bake.Request{Rootfs: w.bake.Rootfs}, field: "rootfs"},
		{req: bake.Request{Initrd: w.bake.Initrd}, field: "initrd"},
		{req: bake.Request{From: "p"}, field: "from"},
		{req: bake.Request{From: "../p"}, field: "from"},
	} {
		c.req.Tag = "large"
		if c.req.From == "" {
			c.req.From = "disk"
		}
		r, err := w.Bake(t.Context(), c.req)
		if c.field != "" {
			var wrong *invalid.Error
			if !errors.As(err, &wrong) || wrong.Field != c.field {
				t.Errorf("%+v: %v", c.req, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		m, g := r.Info.Machine, r.Info.Guest
		if got := fmt.Sprintf("%d MiB, %d vCPUs, %s %s", m.MemoryBytes>>20, m.VCPUs, g.Env["A"], g.Env["B"]); got != c.want {
			t.Errorf("%+v: %s, want %s", c.req, got, c.want)
		}
		w.branch(t, w.fork(t, "large"), "again", vm.BranchDisk) // a disk that was booted before can be booted again
		for _, tag := range []string{"again", "large"} {
			if _, err := w.Snapshots().Delete(tag, store.DeleteForce); err != nil {
				for _, i := range w.List() {
					if i.SnapshotTag == tag {
						_ = w.Kill(i.ID)
					}
				}
				if _, err := w.Snapshots().Delete(tag, store.DeleteForce); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	var none *store.NotFoundError
	if _, err := w.Bake(t.Context(), bake.Request{Tag: "x", From: "missing"}); !errors.As(err, &none) {
		t.Errorf("from nothing: %v", err)
	}
}

// The number of disk layers is bounded, even if parents are booted from the disks of other parents.
func TestDisksOfDisksStayShallow(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	w.branch(t, id, "0", vm.BranchDisk)
	from := "0"
	for _, to := range strings.Split("abcdefghijklmnopqrstuvwxyz", "") {
		if _, err := w.Bake(t.Context(), bake.Request{Tag: "p" + to, From: from}); err != nil {
			t.Fatal(err)
		}
		from = "d" + to
		w.branch(t, w.fork(t, "p"+to), from, vm.BranchDisk)
		if _, disk := w.layers(t, from); disk > 34 {
			t.Fatalf("%s has %d layers", from, disk)
		}
	}
}

// A guest that boots from a snapshot's disk may never become ready. So while such a parent boots,
// its VMM has the limits of the snapshot, except the memory limit.
func TestBootOfADiskIsLimited(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	w.boots(t)
	id := w.source(t)
	limits := vm.Limits{MemoryMiB: 256, CPUs: 0.5, IOBytesPerSecond: 1 << 20}
	if _, err := w.SetLimits(t.Context(), id, limits); err != nil {
		t.Fatal(err)
	}
	w.branch(t, id, "disk", vm.BranchDisk)
	var started []*vmfake.VMM
	w.vmms.Mu.Lock()
	w.vmms.Wrap = func(v *vmfake.VMM) vmpool.VMM { started = append(started, v); return v }
	w.vmms.Mu.Unlock()
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "disk", N: 1}); err != nil {
		t.Fatal(err)
	}
	want := limits
	want.MemoryMiB = 0
	if got := started[0].Limits(); got != want {
		t.Errorf("the VMM that boots the disk has the limits %+v, want %+v", got, want)
	}
	if got := started[1].Limits(); got != limits {
		t.Errorf("the child has the limits %+v, want %+v", got, limits)
	}
	w.KillAll()
}
