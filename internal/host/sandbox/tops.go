package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// topName begins the names of private disk tops in a sandbox's data directory; the first has no
// number.
const topName = "disk.top"

// nextTop is the name of the top that follows those that the sandbox has had.
func (r *record) nextTop() string { return fmt.Sprintf("%s.%d", topName, r.Tops+1) }

// clearOrphans removes disk tops that a daemon made or replaced and did not live to write down:
// they take space, and the name of a new one is that of the next.
func (s *Sandbox) clearOrphans() {
	keep := []string{s.record.Top, suspendedName, secretsName}
	for _, f := range s.record.Frozen {
		keep = append(keep, f.Name)
	}
	if p := s.record.Pending; p != nil {
		keep = append(keep, p.Name)
	}
	entries, _ := os.ReadDir(s.data) // a sandbox without a disk has none
	for _, e := range entries {
		if !slices.Contains(keep, e.Name()) {
			os.Remove(filepath.Join(s.data, e.Name()))
		}
	}
}

// clearTops removes all disk tops of a sandbox without a VM.
func clearTops(data string) {
	entries, _ := os.ReadDir(data) // what is left goes with the sandbox
	for _, e := range entries {
		if e.Name() != suspendedName && e.Name() != secretsName {
			os.Remove(filepath.Join(data, e.Name()))
		}
	}
}
