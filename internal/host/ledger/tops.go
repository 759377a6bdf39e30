package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// FirstTop begins the names of private disk tops in a sandbox's data directory; the first has no
// number.
const FirstTop = "disk.top"

// NextTop is the name of the top that follows those that the sandbox has had.
func (r *Record) NextTop() string { return fmt.Sprintf("%s.%d", FirstTop, r.Tops+1) }

// ClearOrphans removes disk tops of a sandbox that a daemon made or replaced and did not live to write
// down: they take space, and the name of a new one is that of the next.
func (r *Record) ClearOrphans(data string) {
	keep := []string{r.Top, SuspendedFile, SecretsFile}
	for _, f := range r.Frozen {
		keep = append(keep, f.Name)
	}
	if p := r.Pending; p != nil {
		keep = append(keep, p.Name)
	}
	entries, _ := os.ReadDir(data) // a sandbox without a disk has none
	for _, e := range entries {
		if !slices.Contains(keep, e.Name()) {
			os.Remove(filepath.Join(data, e.Name()))
		}
	}
}

// ClearTops removes all disk tops of a sandbox without a VM.
func ClearTops(data string) {
	entries, _ := os.ReadDir(data) // what is left goes with the sandbox
	for _, e := range entries {
		if e.Name() != SuspendedFile && e.Name() != SecretsFile {
			os.Remove(filepath.Join(data, e.Name()))
		}
	}
}
