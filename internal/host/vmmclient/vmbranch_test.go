package vmmclient_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/internal/format/memlayer"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmtest"
)

// In every mode, a branch contains memory, files and running processes, and a rollback restores
// them.
func TestBranchAndRollback(t *testing.T) {
	a := vmtest.Load(t)
	shape := vm.Shape{MemoryBytes: 256 * mib, VCPUs: 1, Template: vmtest.Template()}
	parent := boot(t, a, a.Cloud.VMLinux, a.Cloud.Initrd, "base", shape)
	base := save(t, parent, shape)
	source := fork(t, a, base, "source")
	source.sh(t, "(while :; do echo tick >> /tmp/ticks; sleep 0.05; done) >/dev/null 2>&1 & echo $! > /tmp/pid")
	for i, mode := range []vm.BranchMode{vm.BranchLive, vm.BranchDiff, vm.BranchFull, vm.BranchLive} {
		mark := fmt.Sprintf("mark-%d", i)
		source.sh(t, "echo "+mark+" > /root/mark; sync")
		b := branch(t, source, base, mode)
		source.sh(t, "echo later > /root/mark; kill -0 $(cat /tmp/pid)")
		child := fork(t, a, b, "child")
		if got := child.sh(t, "cat /root/mark; kill -0 $(cat /tmp/pid) && echo alive"); got != mark+"\nalive" {
			t.Errorf("%v: child has %q", mode, got)
		}
		if i == 0 {
			rollback(t, child, b)
			child.sh(t, "rm /root/mark; kill $(cat /tmp/pid)")
			rollback(t, child, b)
			if got := child.sh(t, "cat /root/mark; kill -0 $(cat /tmp/pid) && echo alive"); got != mark+"\nalive" {
				t.Errorf("after a rollback: %q", got)
			}
		}
	}
}

// branch makes a snapshot of the running VM v, whose memory is based on the snapshot base.
func branch(t *testing.T, v *testVM, base *saved, mode vm.BranchMode) *saved {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "fkt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &saved{shape: base.shape, disk: v.disk, disks: v.files}
	for name, f := range map[string]**os.File{"state": &s.state, "layer": &s.layer} {
		if *f, err = os.Create(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*f).Close() })
	}
	top := newTop(t, v.disk.SizeBytes)
	r, err := v.Branch(t.Context(), vmmproto.Branch{Mode: mode, MaxExtents: 4096},
		vmmclient.BranchFiles{MemoryBytes: base.shape.MemoryBytes, State: s.state, Layer: s.layer, Tops: []*os.File{top},
			Frozen: v.frozen(t)})
	if err != nil {
		t.Fatal(err)
	}
	v.files = append(append([]*os.File(nil), v.files...), top)
	if r.Mode != mode {
		t.Fatalf("%v fell back to %v: %s", mode, r.Mode, r.Fallback)
	}
	var copied vmmproto.Branched
	if mode == vm.BranchLive {
		if copied, err = v.WaitCopied(t.Context(), r.Serial); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%v: pause %v, arm %v, %d KiB in %d extents, copied in %v with %d faults", mode, r.Pause,
		r.Arm, r.Save.DirtyBytes>>10, len(r.Save.Extents), copied.Copy, copied.Faults)
	s.result = r.Save
	s.layers = []*os.File{s.layer}
	if mode != vm.BranchFull {
		s.layers = append(append([]*os.File(nil), base.layers...), s.layer)
		for i := range s.result.Extents {
			s.result.Extents[i].Layer = uint32(len(base.layers))
		}
		s.result.Extents = memlayer.Overlay(base.result.Extents, s.result.Extents)
	}
	return s
}

// frozen opens the top of v for reading, in the form that a branch needs.
func (v *testVM) frozen(t *testing.T) []*os.File {
	t.Helper()
	f, err := vmtest.ForReading(v.files[len(v.files)-1])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return []*os.File{f}
}

// rollback rolls v back to s.
func rollback(t *testing.T, v *testVM, s *saved) {
	t.Helper()
	v.files = append(append([]*os.File(nil), s.disks...), newTop(t, s.disk.SizeBytes))
	restore(t, v, s, "rolled-back")
}
