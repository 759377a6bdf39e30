package suite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// A VM has a process, a console, and a directory that no other VM can have at the same time. Kill
// removes all of them, and may be called again.
func spawnAndKill(t *testing.T, h *Host) {
	g := h.spawn(t)
	if st, err := os.Stat(g.dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("its directory: %v, %v", st, err)
	}
	if g.PID() <= 0 {
		t.Errorf("its process is %d", g.PID())
	}
	if _, err := vmpool.Console(h.VMMs, g.dir); err != nil {
		t.Error(err)
	}
	config := vmpool.ShellConfig{ID: "other", Dir: g.dir, Shape: h.Shape}
	if other, err := h.VMMs.Spawn(t.Context(), config); !errors.Is(err, os.ErrExist) || other != nil {
		t.Errorf("a second VM in its directory: %v, %v", other, err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	config.Dir = filepath.Join(h.Dir, "other")
	if other, err := h.VMMs.Spawn(canceled, config); !errors.Is(err, context.Canceled) || other != nil {
		t.Errorf("a VM whose caller has left: %v, %v", other, err)
	}
	if _, err := os.Stat(config.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
	g.checkStats(t, true, 0, 0)
	for range 2 {
		if err := g.Kill(); err != nil {
			t.Error(err)
		}
	}
	g.checkEnded(t, vm.ExitInternal)
	if _, err := os.Stat(g.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory is left: %v", err)
	}
	if _, err := vmpool.Console(h.VMMs, g.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its console is left: %v", err)
	}
}

// Attach finds a VM by its directory until the VM ends.
func attach(t *testing.T, h *Host) {
	g := h.spawn(t)
	found, err := h.VMMs.Attach("found", g.dir)
	if err != nil {
		t.Fatal(err)
	}
	if found.PID() != g.PID() {
		t.Errorf("process %d was found, want %d", found.PID(), g.PID())
	}
	if err := found.Kill(); err != nil {
		t.Fatal(err)
	}
	g.checkEnded(t, vm.ExitInternal)
	for _, dir := range []string{g.dir, filepath.Join(h.Dir, "never")} {
		if found, err := h.VMMs.Attach("found", dir); err == nil || found != nil || vmpool.IsShortage(err) {
			t.Errorf("where no VM lives: %v, %v", found, err)
		}
	}
}

// killSoon kills a VM without waiting. A daemon that starts afterwards does not find the VM.
func killSoon(t *testing.T, h *Host) {
	g := h.spawn(t)
	if err := g.KillSoon(); err != nil {
		t.Fatal(err)
	}
	if found, err := h.VMMs.Attach("found", g.dir); err == nil || found != nil || vmpool.IsShortage(err) {
		t.Errorf("a killed VM was found: %v, %v", found, err)
	}
	if _, err := os.Stat(g.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory is left: %v", err)
	}
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	g.checkEnded(t, vm.ExitInternal)
}

// checkEnded waits for the end of g. It checks the reason, and that the VM's process, connections
// and files are gone.
func (g *guest) checkEnded(t *testing.T, reason vm.ExitReason) {
	t.Helper()
	ctx, stop := vmpool.WhileAlive(t.Context(), g)
	defer stop()
	<-ctx.Done()
	if !vmpool.IsEnd(context.Cause(ctx)) {
		t.Errorf("the cause of its context is %v", context.Cause(ctx))
	}
	if x := g.Exit(); x.Reason != reason || x.Detail == "" {
		t.Errorf("exit %+v, want %v with a detail", x, reason)
	}
	for c := range g.Conns() { // receives until the channel is closed
		c.Conn.Close()
	}
}

// CheckLimits returns an error for a limit below the minimum, and the error names the field. A VM
// accepts the default limits, and reports its usage.
func limits(t *testing.T, h *Host) {
	if err := h.VMMs.CheckLimits("limits.", vm.Limits{}); err != nil {
		t.Error(err)
	}
	var wrong *invalid.Error
	err := h.VMMs.CheckLimits("limits.", vm.Limits{IOBytesPerSecond: 1})
	if !errors.As(err, &wrong) || wrong.Field != "limits.io_bytes_per_second" {
		t.Errorf("one byte per second: %v", err)
	}
	g := h.spawn(t)
	if err := g.Limit(vm.Limits{}, h.Shape.MemoryBytes); err != nil {
		t.Error(err)
	}
	g.Hurry()()
	if _, err := g.Usage(); err != nil {
		t.Error(err)
	}
}

// A guest does not run before Resume. Pausing a paused VM, and resuming a running VM, have no
// effect. Loading a second kernel is refused. Requests may be made concurrently.
func bootPauseResume(t *testing.T, h *Host) {
	g := h.spawn(t)
	if err := g.load(t, t.Context(), h.Initrd); err != nil {
		t.Fatal(err)
	}
	g.checkStats(t, true, 0, 0)
	if err := g.load(t, t.Context(), h.Initrd); err == nil {
		t.Error("a second kernel was loaded")
	}
	if err := g.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.checkStats(t, false, 0, 0)
	g.waitReady(t)
	for _, paused := range []bool{false, true, true, false} {
		request := map[bool]func(context.Context) error{true: g.Pause, false: g.Resume}[paused]
		if err := request(t.Context()); err != nil {
			t.Fatal(err)
		}
		g.checkStats(t, paused, 0, 0)
	}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			_, err := g.Stats(t.Context())
			if err := errors.Join(err, g.Pause(t.Context()), g.Resume(t.Context())); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	select {
	case <-g.Done():
		t.Errorf("it has ended: %+v", g.Exit())
	case <-g.Stalled():
		t.Error("it has found no room on the disk")
	default:
	}
}

// A VM uses its newest frame socket, and closes earlier frame sockets. Without a network it closes
// all of them. If no newer frame socket waits, it keeps the socket that it uses.
func network(t *testing.T, h *Host) {
	g := h.spawn(t)
	if err := g.Boot(t.Context(), vmmproto.Boot{Net: true}, vmmclient.BootFiles{Kernel: open(t, h.Kernel)}); err == nil {
		t.Error("a VM without a frame socket was booted with a network")
	}
	g = h.boot(t)
	s := g.mustBranch(t, vmmproto.Branch{Mode: vm.BranchFull})
	if err := h.spawn(t).restoreWith(t, t.Context(), s, true, true); err == nil {
		t.Error("a VM without a frame socket was restored with a network")
	}
	var sockets []*os.File
	dial := func() {
		t.Helper()
		f, err := g.DialFrames()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		sockets = append(sockets, f)
	}
	check := func(used int) { // used is the index of the only socket that the VM has; -1: none
		t.Helper()
		for i, f := range sockets {
			poll := []unix.PollFd{{Fd: int32(f.Fd())}}
			if _, err := unix.Poll(poll, 0); err != nil || (poll[0].Revents&unix.POLLHUP == 0) != (i == used) {
				t.Errorf("frame socket %d of %d: events %#x, %v", i, len(sockets), poll[0].Revents, err)
			}
		}
	}
	set := func(network bool, used int) {
		t.Helper()
		if err := g.SetNet(t.Context(), network); err != nil {
			t.Error(err)
		}
		check(used)
	}
	for range 3 {
		dial()
	}
	set(true, 2)
	set(true, 2)
	dial()
	set(false, -1)
	dial()
	dial()
	if err := g.restoreWith(t, t.Context(), s, true, true); err != nil {
		t.Fatal(err)
	}
	check(5)
	dial()
	set(true, 6)
	if err := g.restoreWith(t, t.Context(), s, true, true); err != nil { // no newer socket waits
		t.Fatal(err)
	}
	check(6)
	if err := g.restore(t, t.Context(), s, true); err != nil {
		t.Fatal(err)
	}
	check(-1)
}

// everyRequest makes all requests of a VM and returns their errors.
func (g *guest) everyRequest(t *testing.T, ctx context.Context) map[string]error {
	t.Helper()
	file := create(t, t.TempDir())
	s := &saved{state: file, layer: file, disk: []*os.File{open(t, g.host.Base)}}
	_, branched := g.branch(t, ctx, vmmproto.Branch{Mode: vm.BranchDiff})
	_, disk := g.branch(t, ctx, vmmproto.Branch{Mode: vm.BranchDisk})
	_, stats := g.Stats(ctx)
	_, written := g.Written(ctx)
	_, rebased := g.Rebase(ctx, 1, file)
	return map[string]error{
		"boot": g.load(t, ctx, g.host.Initrd), "restore": g.restore(t, ctx, s, true), "resume": g.Resume(ctx),
		"pause": g.Pause(ctx), "branch": branched, "branch of the disk": disk, "rebase": rebased,
		"merge": g.Merge(ctx, vmmproto.Merge{}, file), "net": g.SetNet(ctx, false), "stats": stats, "written": written,
	}
}

// If the guest of a VM has ended, the VM reports the reason and refuses all requests. Its console
// can be read until Kill.
func guestThatEnds(t *testing.T, h *Host) {
	g := h.spawn(t)
	if err := errors.Join(g.load(t, t.Context(), ""), g.Resume(t.Context())); err != nil {
		t.Fatal(err)
	}
	g.checkEnded(t, vm.ExitPanic)
	for request, err := range g.everyRequest(t, t.Context()) {
		if !vmpool.IsEnd(err) {
			t.Errorf("%s: %v", request, err)
		}
	}
	if _, err := g.WaitCopied(t.Context(), 1); err == nil {
		t.Error("a branch that was never made was waited for")
	}
	if text, err := vmpool.Console(h.VMMs, g.dir); err != nil || len(text.Bytes) == 0 {
		t.Errorf("console: %q, %v", text.Bytes, err)
	}
}

// A request whose context has been cancelled is not executed.
func canceledRequests(t *testing.T, h *Host) {
	g := h.boot(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for request, err := range g.everyRequest(t, ctx) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", request, err)
		}
	}
	g.checkStats(t, false, 0, 0)
}

// A branch puts a new top on the disk. If the VM was running, it continues; if it was paused, it
// stays paused. WaitCopied works only for a live branch, and only once.
func branch(t *testing.T, h *Host) {
	g := h.boot(t)
	serials := make(map[uint64]bool)
	for i, c := range []struct {
		mode   vm.BranchMode
		paused bool
	}{{vm.BranchDiff, false}, {vm.BranchLive, false}, {vm.BranchDisk, false}, {vm.BranchFull, false},
		{vm.BranchDisk, true}, {vm.BranchDiff, true}} {
		if c.paused {
			if err := g.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		s := g.mustBranch(t, vmmproto.Branch{Mode: c.mode, Keep: c.mode == vm.BranchFull})
		serials[s.Serial] = true
		if c.mode == vm.BranchLive {
			if b, err := g.WaitCopied(t.Context(), s.Serial); err != nil || b.Failed != nil || b.Serial != s.Serial {
				t.Errorf("the copy of branch %d: %+v, %v", s.Serial, b, err)
			}
		}
		if _, err := g.WaitCopied(t.Context(), s.Serial); err == nil {
			t.Errorf("a %v branch that is complete was waited for", c.mode)
		}
		g.checkStats(t, c.paused, uint64(i+1), 0)
		if len(serials) != i+1 {
			t.Errorf("%d branches have the serials %v", i+1, serials)
		}
	}
}

// A refused branch changes nothing, and a further branch is possible.
func refusedBranch(t *testing.T, h *Host) {
	g := h.boot(t)
	disk := g.disk
	for _, mode := range []vm.BranchMode{vm.BranchDiff, vm.BranchFull, vm.BranchDisk} {
		g.disk = append(disk[:1:1], h.newTop(t)) // this is not the VM's top, so the branch is refused
		if _, err := g.branch(t, t.Context(), vmmproto.Branch{Mode: mode}); err == nil || vmpool.IsEnd(err) {
			t.Errorf("a %v branch with another file for the former top: %v", mode, err)
		}
		g.checkStats(t, false, 0, 0)
	}
	g.disk = disk
	g.mustBranch(t, vmmproto.Branch{Mode: vm.BranchDiff})
	g.checkStats(t, false, 1, 0)
}

// A VM can be rebased onto the latest branch that saved memory, but only once, and only if that
// branch was requested with Keep. A refused rebase changes nothing.
func rebase(t *testing.T, h *Host) {
	g := h.boot(t)
	rebases := uint64(0)
	onto := func(s *saved, want error) {
		t.Helper()
		if _, err := g.Rebase(t.Context(), s.Serial, open(t, s.layer.Name())); !errors.Is(err, want) {
			t.Errorf("rebase: %v, want %v", err, want)
		} else if err == nil {
			rebases++
		}
		if s, err := g.Stats(t.Context()); err != nil || s.Rebases != rebases {
			t.Errorf("stats %+v, %v, want %d rebases", s, err, rebases)
		}
	}
	plain := g.mustBranch(t, vmmproto.Branch{Mode: vm.BranchDiff})
	onto(plain, vm.ErrNotKept)
	kept := g.mustBranch(t, vmmproto.Branch{Mode: vm.BranchDiff, Keep: true})
	g.mustBranch(t, vmmproto.Branch{Mode: vm.BranchDisk})
	// The layer is empty, so the rebase is refused.
	onto(&saved{BranchResult: kept.BranchResult, layer: create(t, h.RAM)}, vm.ErrNotKept)
	onto(plain, vm.ErrNotKept)
	onto(kept, nil)
	onto(kept, vm.ErrNotKept)
	live := g.mustBranch(t, vmmproto.Branch{Mode: vm.BranchLive, Keep: true})
	if _, err := g.WaitCopied(t.Context(), live.Serial); err != nil {
		t.Fatal(err)
	}
	onto(live, nil)
	old := g.mustBranch(t, vmmproto.Branch{Mode: vm.BranchDiff, Keep: true})
	g.mustBranch(t, vmmproto.Branch{Mode: vm.BranchDiff})
	onto(old, vm.ErrNotKept)
}

// Layers between the base image and the top can be merged into one. A branch is possible
// afterwards.
func merge(t *testing.T, h *Host) {
	g := h.boot(t)
	for range 2 {
		g.mustBranch(t, vmmproto.Branch{Mode: vm.BranchDisk})
	}
	merged := create(t, t.TempDir())
	if err := disklayer.Merge(t.Context(), merged, g.disk[1:len(g.disk)-1]); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []vmmproto.Merge{{Disk: 1}, {First: 2}} { // First: 2 would include the top
		if err := g.Merge(t.Context(), wrong, merged); err == nil || vmpool.IsEnd(err) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	if err := g.Merge(t.Context(), vmmproto.Merge{First: 0}, merged); err != nil {
		t.Fatal(err)
	}
	if err := g.Merge(t.Context(), vmmproto.Merge{First: 1}, merged); err == nil {
		t.Error("layers that have been merged were merged")
	}
	g.mustBranch(t, vmmproto.Branch{Mode: vm.BranchDiff})
	g.checkStats(t, false, 3, 0)
}

// A snapshot can be restored into a new VM or, as in a rollback, into a running VM. After that, no
// kernel can be loaded.
func restore(t *testing.T, h *Host) {
	g := h.boot(t)
	s := g.mustBranch(t, vmmproto.Branch{Mode: vm.BranchFull})
	child := h.spawn(t)
	if err := child.restore(t, t.Context(), s, false); err != nil {
		t.Fatal(err)
	}
	child.checkStats(t, true, 0, 0)
	if err := child.load(t, t.Context(), h.Initrd); err == nil {
		t.Error("a kernel was loaded into a child")
	}
	if _, err := child.Written(t.Context()); err != nil {
		t.Error(err)
	}
	kept := g.mustBranch(t, vmmproto.Branch{Mode: vm.BranchDiff, Keep: true})
	for _, v := range []*guest{child, g} {
		for _, resume := range []bool{true, false} {
			if err := v.restore(t, t.Context(), s, resume); err != nil {
				t.Fatal(err)
			}
			if stats, err := v.Stats(t.Context()); err != nil || stats.Paused == resume {
				t.Errorf("after a rollback, resume %v: %+v, %v", resume, stats, err)
			}
		}
		if err := v.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.Rebase(t.Context(), kept.Serial, open(t, kept.layer.Name())); !errors.Is(err, vm.ErrNotKept) {
		t.Errorf("rebase onto a branch from before a rollback: %v", err)
	}
	g.mustBranch(t, vmmproto.Branch{Mode: vm.BranchDiff})
	damaged := *s
	damaged.state = create(t, t.TempDir())
	if err := h.spawn(t).restore(t, t.Context(), &damaged, true); !errors.Is(err, vm.ErrBadState) {
		t.Errorf("an empty state: %v", err)
	}
}

// A state can be tried without its memory and its disk. The VM of the trial leaves nothing behind,
// and the saved VM can be restored afterwards.
func try(t *testing.T, h *Host) {
	g := h.boot(t)
	s := g.mustBranch(t, vmmproto.Branch{Mode: vm.BranchFull})
	trials, size := vmpool.Trials{VMMs: h.VMMs, RunDir: h.Dir}, sizeOf(t, h.Base)
	machine := snapshot.Machine{MemoryBytes: h.Shape.MemoryBytes, VCPUs: h.Shape.VCPUs, Template: h.Shape.Template,
		VolumeSlots: slots}
	trial := func(state string) error {
		return trials.Try(t.Context(), machine, size, open(t, state))
	}
	before, err := os.ReadDir(h.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := trial(s.state.Name()); err != nil {
		t.Error(err)
	}
	if err := trial(create(t, t.TempDir()).Name()); !errors.Is(err, vm.ErrBadState) {
		t.Errorf("an empty state: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := trials.Try(ctx, machine, size, open(t, s.state.Name())); err == nil {
		t.Error("a canceled trial succeeded")
	}
	if after, err := os.ReadDir(h.Dir); err != nil || len(after) != len(before) {
		t.Errorf("%d VMs were there before the trials, and %d are there afterwards, %v", len(before), len(after), err)
	}
	if err := h.spawn(t).restore(t, t.Context(), s, true); err != nil {
		t.Error(err)
	}
}
