package machine_test

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/memlayer"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmm/machine"
	vnet "github.com/forkd/forkd/internal/vmm/virtio/net"
)

// snapshot is the result of a save or a branch: the machine's state, the memory layers, and the
// files of the disk without the new top.
type snapshot struct {
	state   string
	layers  []string
	extents []vm.Extent
	files   []string // paths of the disk's files
	volumes volumes
}

// save pauses v for good and makes a snapshot of it.
func (v *testVM) save(t *testing.T) *snapshot {
	t.Helper()
	if err := v.Pause(); err != nil {
		t.Fatal(err)
	}
	return v.branch(t, &snapshot{}, vm.BranchDiff)
}

func (h *host) create(t *testing.T) *os.File {
	t.Helper()
	f, err := os.CreateTemp(h.dir, "snapshot")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// restore restores snapshot s into v and starts v.
func (v *testVM) restore(t *testing.T, s *snapshot) {
	t.Helper()
	v.restoreWith(t, s, nil)
}

// restoreWith is like restore, with a network peer.
func (v *testVM) restoreWith(t *testing.T, s *snapshot, peer *vnet.Peer) {
	t.Helper()
	v.files, v.volumes = append(slices.Clone(s.files), v.host.newTop(t)), s.volumes.withTops(t, v.host)
	var memory []*os.File
	for _, name := range append([]string{s.state}, s.layers...) {
		f := open(t, name, os.O_RDONLY)
		defer f.Close()
		memory = append(memory, f)
	}
	cfg := machine.RestoreConfig{State: int(memory[0].Fd()), Extents: s.extents, Disks: disks(t, v.files, v.volumes...),
		VMGenID: generation(), Resume: true, Net: peer}
	for _, f := range memory[1:] {
		cfg.Layers = append(cfg.Layers, int(f.Fd()))
	}
	if _, err := v.Restore(cfg); err != nil {
		t.Fatal(err)
	}
}

// fork makes a new machine from a snapshot.
func (h *host) fork(t *testing.T, s *snapshot) *testVM {
	t.Helper()
	v := h.newVM(t)
	v.restore(t, s)
	return v
}

// branch makes a snapshot of the running VM v, and waits until the snapshot is complete. The VM
// runs from the given snapshot (base).
func (v *testVM) branch(t *testing.T, base *snapshot, mode vm.BranchMode) *snapshot {
	t.Helper()
	s, _ := v.branchWith(t, base, machine.BranchConfig{Mode: mode})
	return s
}

// branchWith is like branch, with the given options. It also returns the result of Machine.Branch.
func (v *testVM) branchWith(t *testing.T, base *snapshot, cfg machine.BranchConfig) (*snapshot, vmmproto.BranchResult) {
	t.Helper()
	mode := cfg.Mode
	state, layer, top := v.host.create(t), v.host.create(t), v.host.newTop(t)
	defer state.Close()
	device, err := unix.Open("/dev/userfaultfd", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		device = -1
	} else {
		defer unix.Close(device)
	}
	v.serial++
	cfg.MaxExtents, cfg.Serial, cfg.State, cfg.Layer, cfg.Device = 4096, v.serial, state, layer, device
	cfg.Tops, cfg.Frozen = []*os.File{open(t, top, os.O_RDWR)}, []*os.File{open(t, v.files[len(v.files)-1], os.O_RDONLY)}
	next := v.volumes.withTops(t, v.host)
	for i, files := range v.volumes {
		if len(files) > 0 {
			cfg.Tops = append(cfg.Tops, open(t, next[i][len(files)], os.O_RDWR))
			cfg.Frozen = append(cfg.Frozen, open(t, files[len(files)-1], os.O_RDONLY))
		}
	}
	cfg.Copied = func(b vmmproto.Branched) { v.copied <- b }
	r, err := v.Branch(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.Mode != mode {
		t.Fatalf("a %v branch fell back to %v: %s", mode, r.Mode, r.Fallback)
	}
	if mode == vm.BranchLive {
		if b := <-v.copied; b.Failed != nil {
			t.Fatal(b.Failed.Text)
		}
	}
	s := &snapshot{state: state.Name(), layers: []string{layer.Name()}, extents: r.Save.Extents, files: v.files,
		volumes: v.volumes}
	v.files, v.volumes = append(slices.Clone(v.files), top), next
	if mode != vm.BranchFull { // the layers of base are below the new layer
		s.layers = append(slices.Clone(base.layers), layer.Name())
		for i := range s.extents {
			s.extents[i].Layer = uint32(len(base.layers))
		}
		s.extents = memlayer.Overlay(base.extents, s.extents)
	}
	return s, r
}

// rebase rebases v onto its latest branch.
func (v *testVM) rebase(t *testing.T, s *snapshot) vmmproto.RebaseResult {
	t.Helper()
	r, err := v.Rebase(v.serial, open(t, s.layers[len(s.layers)-1], os.O_RDONLY))
	if err != nil {
		t.Fatal(err)
	}
	return r
}
