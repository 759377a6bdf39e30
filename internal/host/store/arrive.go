package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/feeder"
	"github.com/forkd/forkd/internal/host/phase"
)

// A snapshot from another host can be forked before all of its files are there. Until then, a
// forkd-feed process serves its layers and its base image, and reads of them may wait. When all parts
// have arrived, the store imports and verifies the files as for other imports, and publishes the
// snapshot with the same ID. Later forks use the imported files. A snapshot that is still arriving
// can only be forked, because other operations need its real files.

// arrivingFile is the name of an empty file in the staging directory of an arriving snapshot. The
// next daemon removes such a snapshot, and its sandboxes end.
const arrivingFile = ".arriving"

// arriving is a snapshot on its way from a registry.
type arriving struct {
	entry   *entry
	imports *importing
	arrival *feeder.Arrival
	release func()
}

// later holds back the parts of an Import that are added only after the snapshot has become usable.
type later struct {
	open  func(part int) (*os.File, error) // opens the served file
	files map[string]*os.File              // open files, by the name of the part
	todo  []func() error
}

// soon calls add immediately if the snapshot is not arriving. If the snapshot is arriving, soon
// opens the served file, and keeps add for Arrived.
func (i *importing) soon(n int, p artifact.Part, add func() error) error {
	if i.later == nil {
		return add()
	}
	i.later.todo = append(i.later.todo, add)
	if p.Name == artifact.KernelPart || p.Name == artifact.InitramfsPart { // only a boot needs them
		return nil
	}
	f, err := i.later.open(n)
	if err == nil {
		i.later.files[p.Name] = f
	}
	return err
}

// Arrive makes a snapshot usable for forks while files are missing. The parameters are as for
// Import. Arrive calls open for each part that is served: a layer that the store lacks, or the base
// image. Arrive closes the opened files. The feeder.Arrival reports when the served files have
// arrived. The caller must then call Arrived, or Lose.
func (g *Staging) Arrive(ctx context.Context, m *snapshot.Manifest, files Contents,
	arrival *feeder.Arrival, open func(part int) (*os.File, error), room func() error) (Info, error) {
	if m.DiskOnly() {
		return Info{}, fmt.Errorf("import snapshot %q: it has no memory", g.tag)
	}
	i := g.importing(ctx, m, files, room)
	i.later = &later{open: open, files: make(map[string]*os.File)}
	h := &hotFiles{arrival: arrival}
	err := i.addAll()
	if err == nil {
		h.manifest = artifact.Provisional(i.fresh, i.from, i.id, i.tag)
		err = i.openArriving(h)
	}
	if err == nil {
		err = os.WriteFile(g.Path(arrivingFile), nil, 0o600)
	}
	if err != nil {
		for _, f := range i.later.files {
			f.Close()
		}
		if h.state != nil {
			h.state.Close()
		}
		return Info{}, err
	}
	s := g.store
	e := &entry{tag: g.tag, dir: g.dir, manifest: h.manifest, created: h.manifest.Created, owner: g.owner, hot: h,
		flushed: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.EnterLocked(phase.Arriving)
	e.refs.follow++ // keeps the served files open
	e.arriving = &arriving{entry: e, imports: i, arrival: h.arrival, release: s.releaser(e, &e.refs.follow)}
	g.arriving = e.arriving
	if old := s.byTag[g.tag]; old != nil {
		old.EnterLocked(phase.Gone) // the old snapshot was only listed as failed
	}
	s.addLocked(e)
	s.tell(event.SnapshotCreated, e)
	return s.infoLocked(e), nil
}

// openArriving puts the files of an arriving snapshot into h.
func (i *importing) openArriving(h *hotFiles) (err error) {
	if h.state, err = i.store.openAlone(i.Path(snapshot.StateFile), i.from.State.Bytes); err != nil {
		return err
	}
	h.extents, h.usual = i.extents, make([]atomic.Uint64, len(i.from.Memory))
	for _, p := range artifact.Parts(i.from) {
		f := i.later.files[p.Name]
		layer, isLayer := i.layers[p.Name]
		switch {
		case isLayer && layer.kind == snapshot.MemoryLayerFile:
			h.layers = append(h.layers, f)
		case isLayer:
			h.disk = append(h.disk, f)
		case p.Name == artifact.BasePart:
			h.disk = append([]*os.File{f}, h.disk...)
		}
	}
	return nil
}

// Arrived imports and publishes a snapshot whose files have all arrived. After an error, the caller
// must call Lose.
func (g *Staging) Arrived(ctx context.Context) (Info, error) {
	i := g.arriving.imports
	i.ctx = ctx
	for _, add := range i.later.todo {
		if err := add(); err != nil {
			return Info{}, fmt.Errorf("import snapshot %q: %w", g.tag, err)
		}
	}
	return i.publish()
}

// publishArrived is the last step of Publish for a snapshot that has arrived. The manifest and all
// files are on disk.
func (g *Staging) publishArrived(m *snapshot.Manifest, calm func()) (Info, error) {
	s, e := g.store, g.arriving.entry
	if err := os.Remove(g.Path(arrivingFile)); err != nil { // from here on, a crash loses nothing
		return Info{}, err
	}
	if !g.enterHot(e, m, calm) {
		return Info{}, errors.New("the snapshot was deleted")
	}
	g.done = true
	s.flushNow(e) // only a rename remains to be done; if it fails, the flusher tries again
	g.arriving.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.infoLocked(e), nil
}

// enterHot publishes an arrived snapshot. It returns false if a deletion has begun.
func (g *Staging) enterHot(e *entry, m *snapshot.Manifest, calm func()) bool {
	s := g.store
	e.hotMu.Lock()
	defer e.hotMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !e.EnterLocked(phase.Hot) {
		return false
	}
	e.hot, e.arrived, e.arriving = nil, e.hot, nil
	delete(s.reserved, g.tag)
	s.setManifestLocked(e, m)
	e.published, e.calm, e.served = time.Now(), []func(){calm}, true
	return true
}

// cancel ends the arrival of a snapshot whose deletion has begun.
func (a *arriving) cancel() error {
	a.arrival.Cancel()
	s := a.imports.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.entry.Phase != phase.Gone {
		return errors.New("the daemon is stopping")
	}
	return nil
}

// Lose gives up an arriving snapshot. If a deletion has begun, the snapshot is gone afterwards.
// If no deletion has begun, the snapshot is listed as failed, with the reason, and its leases
// receive the reason.
func (g *Staging) Lose(reason error) {
	s, a := g.store, g.arriving
	s.mu.Lock()
	s.dropLocked(a.entry)
	deleted := a.entry.Phase == phase.Deleting
	if deleted {
		s.tell(event.SnapshotDeleted, a.entry)
	}
	a.entry.EnterLocked(phase.Gone)
	s.mu.Unlock()
	g.Discard()
	if !deleted {
		s.ListFailed(g.tag, g.owner, reason)
	}
	a.arrival.Lose(reason)
	a.release()
}

// Arrival returns the state of the snapshot's missing files. The lease may be nil.
func (l *Lease) Arrival() *feeder.Arrival {
	if l == nil {
		return nil
	}
	return l.arrival
}

// IsTorn reports whether the snapshot with the given ID was arriving when an earlier daemon ended.
// The files of its VMs are gone.
func (s *Store) IsTorn(id string) bool { return s.torn[id] }

// isTorn reports whether a staging directory belongs to a snapshot that was arriving.
func isTorn(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, arrivingFile))
	return err == nil || !errors.Is(err, os.ErrNotExist)
}
