package feeder

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/host/cgroup"
)

// A process has a cgroup of its own, with limits. A starting daemon keeps the cgroup if the process
// still serves files, and removes the cgroup if the process has ended.
func TestLimits(t *testing.T) {
	tree := cgroup.Open(cgroup.Config{RunDir: t.TempDir(), StateDir: "/var/lib"})
	defer tree.Close()
	if leaf, err := tree.NewShared("probe", memoryMiB, maxPIDs); leaf == nil {
		t.Skipf("no limits here: %v, %v", tree.Missing(), err)
	} else if err := leaf.Remove(); err != nil {
		t.Fatal(err)
	}
	r := newRigIn(t, tree)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", r.process.PID()))
	if err != nil {
		t.Fatal(err)
	}
	_, path, _ := strings.Cut(strings.TrimSpace(string(text)), "::")
	name := filepath.Base(path)
	if !strings.HasPrefix(name, leafPrefix) {
		t.Fatalf("its cgroup is %s", path)
	}
	if !KeepsLeaf(tree, name) || KeepsLeaf(tree, "net") {
		t.Error("a new daemon would remove the cgroup, or keep another one")
	}
	var list []string
	if err := tree.Sweep(func(name string) bool { list = append(list, name); return KeepsLeaf(tree, name) }); err != nil {
		t.Error(err)
	}
	for i := range r.frames.Len() {
		r.deliver(t, uint32(i))
	}
	if err := r.Whole(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	<-r.Ended()
	if KeepsLeaf(tree, name) || tree.Find(name) != nil || len(list) != 1 {
		t.Errorf("%q, of %q, is left after its process", name, list)
	}
}
