package vmmclient_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmtest"
)

// A VM is branched many times, and its layers are merged from time to time. Afterwards the VMM has
// no more descriptors than before, and the disk has all data that the guest has written.
func TestManyBranchesOfOneVM(t *testing.T) {
	const branches, between = 300, 20
	a := vmtest.Load(t)
	shape := vm.Shape{MemoryBytes: 128 * mib, VCPUs: 1, Template: vmtest.Template()}
	parent := boot(t, a, a.Minimal.VMLinux, a.Minimal.Initrd, "base", shape)
	source := fork(t, a, save(t, parent, shape), "source")
	first := len(source.files) - 2 // number of layers above the base image, without the top
	before := descriptors(t, source)
	for i := range branches {
		if i%10 == 0 {
			source.sh(t, fmt.Sprintf("echo %d > /root/n%d; echo %d > /root/last; sync", i, i, i))
		}
		branchAway(t, source, shape.MemoryBytes)
		if i%between == between-1 {
			mergeTops(t, source, first)
		}
	}
	if now := descriptors(t, source); now > before+2 {
		t.Errorf("after %d branches the VMM has %d descriptors, at first %d", branches, now, before)
	}
	want := fmt.Sprintf("%d %d", branches/10, branches-10)
	const look = "echo 3 > /proc/sys/vm/drop_caches; for f in /root/n*; do [ $(cat $f) = ${f#/root/n} ] && echo ok; done | wc -l; cat /root/last"
	if got := source.sh(t, "echo $("+look+")"); got != want {
		t.Errorf("the source has %q, want %q", got, want)
	}
	last := branch(t, source, &saved{shape: shape, disk: source.disk}, vm.BranchFull)
	if got := fork(t, a, last, "child").sh(t, "echo $("+look+")"); got != want {
		t.Errorf("a child has %q, want %q", got, want)
	}
}

func descriptors(t *testing.T, v *testVM) int {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", v.PID()))
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// branchAway branches v and keeps only the frozen top.
func branchAway(t *testing.T, v *testVM, memory uint64) {
	t.Helper()
	var files [2]*os.File
	for i := range files {
		f, err := os.CreateTemp("/dev/shm", "fkt")
		if err != nil {
			t.Fatal(err)
		}
		os.Remove(f.Name())
		defer f.Close()
		files[i] = f
	}
	top := newTop(t, v.disk.SizeBytes)
	_, err := v.Branch(t.Context(), vmmproto.Branch{Mode: vm.BranchDiff, MaxExtents: 4096},
		vmmclient.BranchFiles{MemoryBytes: memory, State: files[0], Layer: files[1], Tops: []*os.File{top},
			Frozen: v.frozen(t)})
	if err != nil {
		t.Fatal(err)
	}
	v.files = append(v.files, top)
}

// mergeTops merges layers of v: from the layer with the number first to the layer just below the
// top.
func mergeTops(t *testing.T, v *testVM, first int) {
	t.Helper()
	merged, err := os.Create(filepath.Join(t.TempDir(), "merged"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { merged.Close() })
	top := len(v.files) - 1
	if err := disklayer.Merge(t.Context(), merged, v.files[1+first:top]); err != nil {
		t.Fatal(err)
	}
	if err := v.Merge(t.Context(), vmmproto.Merge{First: uint32(first)}, merged); err != nil {
		t.Fatal(err)
	}
	for _, f := range v.files[1+first : top] {
		f.Close()
	}
	v.files = append(v.files[:1+first:1+first], merged, v.files[top])
}
