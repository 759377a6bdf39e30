package ledger

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/forkd/forkd/internal/format/record"
)

// A killed daemon may leave tops that the record does not name, such as a half-written merged top. They
// are removed, and files that the record names stay.
func TestOrphansAreRemoved(t *testing.T) {
	dir := t.TempDir()
	keep := []string{"disk.merged.new", "disk.top.3", "disk.top.4", SuspendedFile, SecretsFile, VolumeFiles + ".1"}
	for _, name := range append(slices.Clone(keep), "disk.merged.old", "disk.top", "disk.top.2") {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := Record{Top: "disk.top.3", Frozen: []record.FrozenTop{{Name: "disk.merged.new"}},
		Pending: &record.PendingTop{Name: "disk.top.4"}}
	r.ClearOrphans(dir)
	var left []string
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	slices.Sort(keep)
	if err != nil || !slices.Equal(left, keep) {
		t.Errorf("left: %q, want %q, %v", left, keep, err)
	}
}
