package vmmclient

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// filesOfALeaf returns a Leaf that consists of ordinary files, and its directory. The test can read
// what the Leaf writes to these files.
func filesOfALeaf(t *testing.T) (*cgroup.Leaf, string) {
	t.Helper()
	parent, run := t.TempDir(), t.TempDir()
	tree := filepath.Join(parent, fmt.Sprintf("forkd-%x", sha256.Sum256([]byte(run)))[:len("forkd-")+8])
	leaf := filepath.Join(tree, "vm")
	if err := os.MkdirAll(leaf, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		parent + "/cgroup.procs": "", parent + "/cgroup.controllers": "memory", parent + "/cgroup.subtree_control": "memory",
		tree + "/cgroup.controllers": "memory", tree + "/cgroup.subtree_control": "memory",
		leaf + "/memory.max": "0", leaf + "/memory.swap.max": "0", leaf + "/memory.stat": "anon 0\nshmem 0",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.RemoveAll(leaf) }) // needed because Remove's rmdir fails for ordinary files
	return cgroup.Open(cgroup.Config{Parent: parent, RunDir: run, StateDir: run}).Find("vm"), leaf
}

// layerInRAM returns an empty memory layer on tmpfs.
func layerInRAM(t *testing.T) *os.File {
	t.Helper()
	layers, err := os.MkdirTemp("/dev/shm", "forkd-test-")
	if err != nil {
		t.Skipf("no tmpfs: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(layers) })
	layer, err := os.Create(filepath.Join(layers, "layer"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { layer.Close() })
	return layer
}

// limitIn returns the memory limit in the directory of a leaf, in bytes.
func limitIn(t *testing.T, leaf string) uint64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(leaf, "memory.max"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// If a VMM does not answer a branch request in time, it loses the extra memory that it was granted
// for the branch.
func TestABranchWithoutAnswerRaisesNoLimit(t *testing.T) {
	const ram = 1 << 30
	leaf, dir := filesOfALeaf(t)
	if err := leaf.Set(vm.Limits{}, ram); err != nil {
		t.Fatal(err)
	}
	usual, layer := limitIn(t, dir), layerInRAM(t)
	v, _ := scriptedIn(t, sleeper(t), leaf)
	v.limits.long = time.Millisecond
	_, err := v.Branch(t.Context(), vmmproto.Branch{Mode: vm.BranchLive},
		BranchFiles{MemoryBytes: ram, State: tempFile(t), Layer: layer})
	if !errors.Is(err, ErrNoAnswer) {
		t.Errorf("Branch = %v", err)
	}
	if n := limitIn(t, dir); n > usual+ram/2 {
		t.Errorf("the limit stays %d bytes, it was %d", n, usual)
	}
}

// If a VMM was copying a layer when its daemon exited, the VMM keeps the extra memory until the
// time limit of a copy has passed, and then loses it. This is also true if the VMM has refused
// branches in the meantime.
func TestACopyForAnEarlierDaemonRaisesNoLimit(t *testing.T) {
	const ram = 1 << 30
	leaf, dir := filesOfALeaf(t)
	if err := os.WriteFile(filepath.Join(dir, "memory.max"), []byte(fmt.Sprint(4*ram)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := leaf.Set(vm.Limits{}, ram); err != nil {
		t.Fatal(err)
	}
	v, vmm := scriptedIn(t, sleeper(t), leaf)
	go answer(t, vmm, vmmproto.KindError, vmmproto.ErrorOf(vm.ErrCopying))
	_, err := v.Branch(t.Context(), vmmproto.Branch{Mode: vm.BranchLive},
		BranchFiles{MemoryBytes: ram, State: tempFile(t), Layer: layerInRAM(t)})
	if !errors.Is(err, vm.ErrCopying) {
		t.Fatalf("Branch = %v", err)
	}
	if n := limitIn(t, dir); n < 2*ram {
		t.Fatalf("the limit is %d bytes while a copy may be under way", n)
	}
	v.tightenAfter(time.Millisecond)
	for end := time.Now().Add(time.Minute); limitIn(t, dir) > 2*ram; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the limit stays %d bytes", limitIn(t, dir))
		}
	}
}

// If a VMM never reports the end of a live branch, it loses the extra memory that it was granted
// for the branch.
func TestACopyWithoutEndRaisesNoLimit(t *testing.T) {
	const ram = 1 << 30
	leaf, dir := filesOfALeaf(t)
	if err := leaf.Set(vm.Limits{}, ram); err != nil {
		t.Fatal(err)
	}
	usual, layer := limitIn(t, dir), layerInRAM(t)
	v, vmm := scriptedIn(t, sleeper(t), leaf)
	go answer(t, vmm, vmmproto.KindOK, &vmmproto.BranchResult{Mode: vm.BranchLive,
		Save: vmmproto.SaveResult{LayerBytes: ram}})
	result, err := v.Branch(t.Context(), vmmproto.Branch{Mode: vm.BranchLive},
		BranchFiles{MemoryBytes: ram, State: tempFile(t), Layer: layer})
	if err != nil {
		t.Fatal(err)
	}
	if n := limitIn(t, dir); n < usual+ram {
		t.Fatalf("the limit is %d bytes while the layer is copied, %d without", n, usual)
	}
	late, cancel := context.WithTimeout(t.Context(), 1)
	defer cancel()
	if _, err := v.WaitCopied(late, result.Serial); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("WaitCopied = %v", err)
	}
	if n := limitIn(t, dir); n > usual+ram/2 {
		t.Errorf("the limit stays %d bytes, it was %d", n, usual)
	}
}
