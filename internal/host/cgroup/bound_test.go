package cgroup

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// The smallest limit applies, wherever it is between the root and the cgroup.
func TestMemoryBound(t *testing.T) {
	mount := t.TempDir()
	own := filepath.Join(mount, "a", "b")
	if err := os.MkdirAll(own, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file, text string
		want       uint64
	}{
		{"a/b/memory.max", "max\n", math.MaxUint64}, {"a/b/memory.max", "3000\n", 3000}, {"a/memory.high", "2000\n", 2000},
		{"a/memory.max", "max\n", 2000}, {"memory.max", "1000\n", 1000}, {"a/b/memory.high", "500\n", 500},
	} {
		if err := os.WriteFile(filepath.Join(mount, c.file), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := boundAt(own, mount); got != c.want {
			t.Errorf("with %s of %q: %d, want %d", c.file, c.text, got, c.want)
		}
	}
	if got := boundAt("/elsewhere", mount); got != math.MaxUint64 {
		t.Errorf("outside of the hierarchy: %d", got)
	}
}
