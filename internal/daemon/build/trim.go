package build

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/store"
)

// maxSteps bounds the snapshots of steps that are kept for later builds. Those that were not used for
// longest go first. What is built upon one has links of its own to its layers.
const maxSteps = 256

// used notes that a build has used the snapshot of a step.
func (b *Builder) used(tag string) {
	name, now := filepath.Join(b.cfg.Dir, "used", tag), time.Now()
	if err := os.Chtimes(name, now, now); err == nil {
		return
	}
	if err := os.WriteFile(name, nil, 0o600); err != nil { // the step counts as used when it was made
		b.cfg.Log.Warn("note the use of a build's step", "snapshot", tag, "error", err)
	}
}

// Trim removes the snapshots of steps that are too many, and what is remembered of snapshots that are not
// there any more.
func (b *Builder) Trim(most int) {
	type step struct {
		tag  string
		used time.Time
	}
	var steps []step
	there := make(map[string]bool)
	for _, i := range b.cfg.Manager.Snapshots().List() {
		there[i.Tag] = true
		if !snapshot.IsStepTag(i.Tag) || i.Writing {
			continue
		}
		s := step{i.Tag, i.Created}
		if info, err := os.Stat(filepath.Join(b.cfg.Dir, "used", i.Tag)); err == nil {
			s.used = info.ModTime()
		}
		steps = append(steps, s)
	}
	slices.SortFunc(steps, func(a, b step) int { return a.used.Compare(b.used) })
	for n := 0; n < len(steps)-most; n++ {
		err := b.cfg.Manager.DeleteSnapshot(steps[n].tag, store.DeleteForce)
		var inUse *store.InUseError
		if err != nil && !errors.As(err, &inUse) {
			b.cfg.Log.Warn("remove the snapshot of a build's step", "snapshot", steps[n].tag, "error", err)
		}
		if err == nil {
			delete(there, steps[n].tag)
		}
	}
	for _, dir := range []string{"used", "results"} {
		entries, err := os.ReadDir(filepath.Join(b.cfg.Dir, dir))
		if err != nil {
			b.cfg.Log.Warn("look for what builds remember", "error", err)
		}
		for _, e := range entries {
			if !there[e.Name()] && !strings.HasPrefix(e.Name(), ".") { // else another build is writing it
				_ = os.Remove(filepath.Join(b.cfg.Dir, dir, e.Name())) // the next build tries again
			}
		}
	}
}
