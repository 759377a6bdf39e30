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

// maxSteps is the maximum number of step snapshots kept for later builds. The least recently used
// snapshots are removed first. Other snapshots that need the layers of a removed snapshot have
// their own links to these layers.
const maxSteps = 256

// used(tag) records that a build has used the snapshot of a step.
func (b *Builder) used(tag string) {
	name, now := filepath.Join(b.cfg.Dir, "used", tag), time.Now()
	if err := os.Chtimes(name, now, now); err == nil {
		return
	}
	if err := os.WriteFile(name, nil, 0o600); err != nil { // after an error, the time of the snapshot's creation counts
		b.cfg.Log.Warn("note the use of a build's step", "snapshot", tag, "error", err)
	}
}

// pin protects the snapshots of a build's steps against Trim until the returned function is called.
func (w *work) pin() (unpin func()) {
	add := func(n int) {
		w.b.mu.Lock()
		defer w.b.mu.Unlock()
		for i := range w.keys {
			tag := w.tagOf(i)
			if w.b.pinned[tag] += n; w.b.pinned[tag] == 0 {
				delete(w.b.pinned, tag)
			}
		}
	}
	add(1)
	return func() { add(-1) }
}

func (b *Builder) isPinned(tag string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pinned[tag] > 0
}

// Trim keeps the most recently used snapshots of steps, up to the given number. It also keeps the
// snapshots of running builds, and snapshots in use. It removes the other snapshots of steps, and
// the records of deleted snapshots.
func (b *Builder) Trim(most int) {
	type step struct {
		tag  string
		used time.Time
	}
	var steps []step
	for _, i := range b.cfg.Manager.Snapshots().List() {
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
		if b.isPinned(steps[n].tag) {
			continue
		}
		_, err := b.cfg.Manager.Snapshots().Delete(steps[n].tag, store.DeleteForce)
		var inUse *store.InUseError
		if err != nil && !errors.As(err, &inUse) {
			b.cfg.Log.Warn("remove the snapshot of a build's step", "snapshot", steps[n].tag, "error", err)
		}
	}
	b.forget(func(tag string) bool {
		_, err := b.cfg.Manager.Snapshots().Info(tag)
		return !errors.As(err, new(*store.NotFoundError))
	})
}

// forget removes the records of deleted snapshots. Other builds are running, and each writes its
// record after it has made its snapshot. So this method checks each snapshot just before it removes
// the snapshot's record, while no build is making this snapshot.
func (b *Builder) forget(there func(tag string) bool) {
	for dir, claim := range map[string]string{"used": "step ", "results": "tag "} {
		entries, err := os.ReadDir(filepath.Join(b.cfg.Dir, dir))
		if err != nil {
			b.cfg.Log.Warn("look for what builds remember", "error", err)
		}
		for _, e := range entries {
			tag := e.Name()
			if strings.HasPrefix(tag, ".") || there(tag) { // ".": another build is writing this record
				continue
			}
			free, err := b.claim(claim + tag)
			if err != nil {
				continue
			}
			if !there(tag) {
				_ = os.Remove(filepath.Join(b.cfg.Dir, dir, tag)) // the next build tries again
			}
			free()
		}
	}
}
