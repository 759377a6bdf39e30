package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/forkd/forkd/internal/host/writers"
)

// FirstTop is the file name of a sandbox's first private disk top, and the prefix of the names of
// later tops.
const FirstTop = "disk.top"

// NextTop returns the file name for the sandbox's next top.
func (r *Record) NextTop() string { return fmt.Sprintf("%s.%d", FirstTop, r.Tops+1) }

// VolumeFiles is the prefix of the names of the directories with the sandbox's copies of volumes.
const VolumeFiles = "volume"

// FrozenOwners returns the IDs of the snapshots that own the sandbox's frozen tops.
func (r *Record) FrozenOwners() (owners []string) {
	for _, f := range r.Frozen {
		owners = append(owners, f.Owner)
	}
	return owners
}

// ClearOrphans removes disk tops that the sandbox's record does not name. A daemon made or replaced
// such tops and was killed before it could write the record. These tops take space, and their names
// are needed for new tops. A top that the VMM can still write to is kept.
func (r *Record) ClearOrphans(data string) {
	keep := []string{r.Top, SuspendedFile, SecretsFile}
	for _, f := range r.Frozen {
		keep = append(keep, f.Name)
	}
	if p := r.Pending; p != nil {
		keep = append(keep, p.Name)
	}
	entries, _ := os.ReadDir(data) // a sandbox without a disk has no data directory
	for _, e := range entries {
		if !slices.Contains(keep, e.Name()) && !strings.HasPrefix(e.Name(), VolumeFiles) {
			_ = writers.Remove(filepath.Join(data, e.Name()), 0)
		}
	}
}

// ClearTops removes all disk tops and copies of volumes of a sandbox that has no VM.
func ClearTops(data string) {
	entries, _ := os.ReadDir(data) // after an error, the tops are deleted with the sandbox
	for _, e := range entries {
		if e.Name() != SuspendedFile && e.Name() != SecretsFile {
			os.RemoveAll(filepath.Join(data, e.Name()))
		}
	}
}
