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

	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// filesOfALeaf returns a cgroup that consists of ordinary files, and its directory: what is written to
// a cgroup can be read from them.
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
	t.Cleanup(func() { os.RemoveAll(leaf) }) // no file of a real one could be removed
	return cgroup.Open(cgroup.Config{Parent: parent, RunDir: run, StateDir: run}).Find("vm"), leaf
}

// A VMM that never says that it has copied the layer of a live branch keeps none of the memory that it
// was allowed for the copy.
func TestACopyWithoutEndRaisesNoLimit(t *testing.T) {
	const ram = 1 << 30
	leaf, dir := filesOfALeaf(t)
	if err := leaf.Set(vm.Limits{}, ram); err != nil {
		t.Fatal(err)
	}
	limit := func() uint64 {
		text, err := os.ReadFile(filepath.Join(dir, "memory.max"))
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	usual := limit()
	layers, err := os.MkdirTemp("/dev/shm", "forkd-test-")
	if err != nil {
		t.Skipf("no tmpfs: %v", err)
	}
	defer os.RemoveAll(layers)
	layer, err := os.Create(filepath.Join(layers, "layer"))
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	v, vmm := scriptedIn(t, leaf)
	go answer(t, vmm, vmmproto.KindOK, &vmmproto.BranchResult{Mode: vm.BranchLive,
		Save: vmmproto.SaveResult{LayerBytes: ram}})
	result, err := v.Branch(t.Context(), vmmproto.Branch{Mode: vm.BranchLive},
		BranchFiles{MemoryBytes: ram, State: tempFile(t), Layer: layer})
	if err != nil {
		t.Fatal(err)
	}
	if n := limit(); n < usual+ram {
		t.Fatalf("the limit is %d bytes while the layer is copied, %d without", n, usual)
	}
	late, cancel := context.WithTimeout(t.Context(), 1)
	defer cancel()
	if _, err := v.WaitCopied(late, result.Serial); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("WaitCopied = %v", err)
	}
	if n := limit(); n > usual+ram/2 {
		t.Errorf("the limit stays %d bytes, it was %d", n, usual)
	}
}
