package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// FirstTop is the name of the first private disk top in a sandbox's data directory, and the prefix
// of later ones.
const FirstTop = "disk.top"

// NextTop returns the name for the sandbox's next top.
func (r *Record) NextTop() string { return fmt.Sprintf("%s.%d", FirstTop, r.Tops+1) }

// ClearOrphans removes disk tops that the sandbox's record does not name, because a daemon made or
// replaced them and died before it recorded that. They take space, and new tops reuse their names.
func (r *Record) ClearOrphans(data string) {
	keep := []string{r.Top, SuspendedFile, SecretsFile}
	for _, f := range r.Frozen {
		keep = append(keep, f.Name)
	}
	if p := r.Pending; p != nil {
		keep = append(keep, p.Name)
	}
	entries, _ := os.ReadDir(data) // a sandbox without a disk has no directory
	for _, e := range entries {
		if !slices.Contains(keep, e.Name()) {
			os.Remove(filepath.Join(data, e.Name()))
		}
	}
}

// ClearTops removes all disk tops of a sandbox without a VM.
func ClearTops(data string) {
	entries, _ := os.ReadDir(data) // the rest is deleted with the sandbox
	for _, e := range entries {
		if e.Name() != SuspendedFile && e.Name() != SecretsFile {
			os.Remove(filepath.Join(data, e.Name()))
		}
	}
}
