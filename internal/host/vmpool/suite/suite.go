// Package suite tests that an implementation of vmpool.VMMs, and its VMs, behave as the daemon
// expects.
//
// Package vmfake runs the tests with fake VMs on every host, and package vmpool runs them with real
// VMs on hosts with KVM. So the fake VMs behave like real VMs in every respect that the suite
// tests. The guest only needs to report that it is ready. The suite does not look into the guest's
// memory or disk.
package suite

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/memlayer"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Host has the things that a test of the suite needs.
type Host struct {
	VMMs  vmpool.VMMs
	Dir   string // directory for the directories of VMs; short, because they contain unix sockets
	RAM   string // directory for memory layers; must be on tmpfs for real VMs
	Shape vm.Shape

	Kernel, Initrd string // paths; without an initramfs, the guest panics
	Cmdline        string
	Base           string // path of the base image of the disk
}

// Run runs the suite. It calls newHost for each of its tests.
func Run(t *testing.T, newHost func(t *testing.T) *Host) {
	for _, c := range []struct {
		name string
		test func(*testing.T, *Host)
	}{
		{"SpawnAndKill", spawnAndKill},
		{"Attach", attach},
		{"KillSoon", killSoon},
		{"Limits", limits},
		{"BootPauseResume", bootPauseResume},
		{"Network", network},
		{"GuestThatEnds", guestThatEnds},
		{"CanceledRequests", canceledRequests},
		{"Branch", branch},
		{"RefusedBranch", refusedBranch},
		{"Rebase", rebase},
		{"Merge", merge},
		{"Restore", restore},
		{"Try", try},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, newHost(t)) })
	}
}

// patience bounds every wait. It is long enough for slow hosts.
const patience = 2 * time.Minute

// maxExtents is how many extents a memory layer may have.
const maxExtents = 64

// guest is a VM of the suite, and the files of its disk.
type guest struct {
	vmpool.VMM
	host *Host
	dir  string
	disk []*os.File // base image, layers, top; empty until the VM has a guest
}

// spawn starts a VM without a guest.
func (h *Host) spawn(t *testing.T) *guest {
	t.Helper()
	shell, err := vmpool.Spawn(t.Context(), h.VMMs, h.Dir, h.Shape)
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{VMM: shell.VMM, host: h, dir: shell.Dir}
	t.Cleanup(func() {
		if text, err := vmpool.Console(h.VMMs, g.dir); err == nil && t.Failed() {
			t.Logf("console:\n%s", text.Bytes)
		}
		if err := g.Kill(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// boot starts a VM and a guest, and waits until the guest has reported that it is ready.
func (h *Host) boot(t *testing.T) *guest {
	t.Helper()
	g := h.spawn(t)
	if err := errors.Join(g.load(t, t.Context(), h.Initrd), g.Resume(t.Context())); err != nil {
		t.Fatal(err)
	}
	g.waitReady(t)
	return g
}

// load gives the VM a new disk and loads a kernel, which does not run yet.
func (g *guest) load(t *testing.T, ctx context.Context, initrd string) error {
	t.Helper()
	disk := []*os.File{open(t, g.host.Base), g.host.newTop(t)}
	files := vmmclient.BootFiles{Kernel: open(t, g.host.Kernel), Disks: [][]*os.File{disk, nil}}
	if initrd != "" {
		files.Initrd = open(t, initrd)
	}
	err := g.Boot(ctx, vmmproto.Boot{Cmdline: g.host.Cmdline, VMGenID: [16]byte{1}, Disks: g.host.disks(t)}, files)
	if err == nil {
		g.disk = disk
	}
	return err
}

// waitReady waits until the guest has reported that it is ready.
func (g *guest) waitReady(t *testing.T) {
	t.Helper()
	select {
	case c, ok := <-g.Conns():
		if !ok {
			t.Fatalf("the VM has ended while it booted: %+v", g.Exit())
		}
		defer c.Conn.Close()
		var ready agentproto.Ready
		err := json.NewDecoder(c.Conn).Decode(&ready)
		if err != nil || c.Port != agentproto.ReadyPort || ready.Version != agentproto.Version {
			t.Fatalf("announcement at port %d: %+v, %v", c.Port, ready, err)
		}
	case <-time.After(patience):
		t.Fatal("the guest did not announce itself")
	}
}

// checkStats compares the VM's statistics with the given values.
func (g *guest) checkStats(t *testing.T, paused bool, topSwaps, rebases uint64) {
	t.Helper()
	s, err := g.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Paused != paused || s.TopSwaps != topSwaps || s.Rebases != rebases || s.DiskFull {
		t.Errorf("stats %+v, want paused %v, %d top swaps, %d rebases", s, paused, topSwaps, rebases)
	}
}

// saved is a snapshot that the suite has made.
type saved struct {
	vmmproto.BranchResult
	state, layer *os.File
	disk         []*os.File // base image and layers
}

// branch branches g. If it succeeds, the disk of g has a new top.
func (g *guest) branch(t *testing.T, ctx context.Context, req vmmproto.Branch) (*saved, error) {
	t.Helper()
	req.MaxExtents = maxExtents
	s := &saved{disk: g.disk}
	frozen, top := open(t, g.disk[len(g.disk)-1].Name()), g.host.newTop(t)
	files := vmmclient.BranchFiles{MemoryBytes: g.host.Shape.MemoryBytes, Tops: []*os.File{top},
		Frozen: []*os.File{frozen}}
	if req.Mode != vm.BranchDisk {
		s.state, s.layer = create(t, t.TempDir()), create(t, g.host.RAM)
		files.State, files.Layer = s.state, s.layer
	}
	var err error
	if s.BranchResult, err = g.Branch(ctx, req, files); err != nil {
		return nil, err
	}
	g.disk = append(g.disk[:len(g.disk):len(g.disk)], top)
	return s, nil
}

// mustBranch branches g. It checks the result and the files that the VM has written.
func (g *guest) mustBranch(t *testing.T, req vmmproto.Branch) *saved {
	t.Helper()
	s, err := g.branch(t, t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if s.Mode != req.Mode {
		t.Errorf("a %v branch was done as %v: %s", req.Mode, s.Mode, s.Fallback)
	}
	if want := req.Keep && (req.Mode == vm.BranchLive || req.Mode == vm.BranchDiff); s.Kept != want {
		t.Errorf("%+v: kept %v", req, s.Kept)
	}
	memory, save := g.host.Shape.MemoryBytes, &s.Save
	if req.Mode == vm.BranchDisk {
		if len(save.Extents) != 0 || save.LayerBytes != 0 || save.DirtyBytes != 0 || save.StateBytes != 0 {
			t.Errorf("a branch of the disk alone saved %+v", save)
		}
		return s
	}
	// Later branches may have no dirty pages, because an idle guest may write nothing between two
	// branches.
	first := len(s.disk) == 2
	if err := memlayer.CheckSaved(save.Extents, memory, maxExtents); err != nil || first && len(save.Extents) == 0 {
		t.Errorf("%d extents: %v", len(save.Extents), err)
	}
	if first && save.DirtyBytes == 0 || save.DirtyBytes > memory {
		t.Errorf("%d bytes of %d were written", save.DirtyBytes, memory)
	}
	if n := sizeOf(t, s.state.Name()); n == 0 || n != save.StateBytes {
		t.Errorf("the state has %d bytes, the VM says %d", n, save.StateBytes)
	}
	if n := sizeOf(t, s.layer.Name()); n != memory || save.LayerBytes != memory {
		t.Errorf("the layer has %d bytes, the VM says %d; its memory has %d", n, save.LayerBytes, memory)
	}
	return s
}

// restore restores s into g, without a network.
func (g *guest) restore(t *testing.T, ctx context.Context, s *saved, resume bool) error {
	t.Helper()
	return g.restoreWith(t, ctx, s, resume, false)
}

// restoreWith restores s into g.
func (g *guest) restoreWith(t *testing.T, ctx context.Context, s *saved, resume, network bool) error {
	t.Helper()
	var disk []*os.File
	for _, layer := range s.disk {
		disk = append(disk, open(t, layer.Name())) // the VMM may only read it
	}
	disk = append(disk, g.host.newTop(t))
	req := vmmproto.Restore{Extents: s.Save.Extents, Disks: g.host.disks(t), VMGenID: [16]byte{2}, Resume: resume,
		Net: network}
	_, err := g.Restore(ctx, req, vmmclient.RestoreFiles{State: open(t, s.state.Name()),
		Layers: []*os.File{open(t, s.layer.Name())}, Disks: [][]*os.File{disk, nil}})
	if err == nil {
		g.disk = disk
	}
	return err
}

// slots is the number of empty volume slots of every guest.
const slots = 1

// disks describes the disk and the volume slot of every guest.
func (h *Host) disks(t *testing.T) []vmmproto.Disk {
	t.Helper()
	return []vmmproto.Disk{{SizeBytes: sizeOf(t, h.Base)}, {Volume: true}}
}

// newTop returns an empty top for the disk.
func (h *Host) newTop(t *testing.T) *os.File {
	t.Helper()
	f := create(t, t.TempDir())
	if err := disklayer.Format(f, sizeOf(t, h.Base)); err != nil {
		t.Fatal(err)
	}
	return f
}

func sizeOf(t *testing.T, path string) uint64 {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return uint64(st.Size())
}

func create(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.CreateTemp(dir, "suite")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
