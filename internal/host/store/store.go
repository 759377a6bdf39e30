// Package store keeps the snapshots of one host. A snapshot is a directory on disk. It is published
// completely or not at all. Memory layers of snapshots in use have copies on a RAM file system
// ("hot" layers). The package also decides which snapshots may be deleted.
//
// A lease is the right to use a snapshot, which is not deleted before its last lease ends. A pin
// protects a snapshot from deletion without using it. A sandbox follows a snapshot from which a
// part of its memory is mapped: the snapshot can then lose its name, but its files stay. The owner
// of a layer is the snapshot that the layer was made for; other snapshots have links to the layer.
//
// The package starts no VM and does not interpret vmstate and layers. It never computes digests or
// copies layers while a fork waits, with one exception: the first use of a snapshot opens its
// files, and copies memory layers that are not in RAM back into RAM. Later uses share the open
// files. Package image manages images. A snapshot only names its base image.
//
// Files in the store may come from other hosts, so they are not trusted. They are opened without
// following links or leaving the store's directories. The store's own records, and not the
// manifests, say which file is a base image, and to which snapshot a layer in RAM belongs.
//
// Layout:
//
//	<root>/lock                        held by the daemon that owns the store
//	<root>/reserve                     space for small files on a full disk
//	<root>/snapshots/<tag>/            a published snapshot, see package snapshot for its files
//	<root>/bases/                      the files of the base images that snapshots name
//	<root>/staging/<id>/               a snapshot that is being made, or a hot snapshot that is not flushed yet.
//	                                   The next start keeps a hot snapshot if its memory layer is still in RAM, and
//	                                   removes all others
//	<ram>/<id>/memory.layer            the hot copy of a snapshot's memory layer
//	<ram>/<id>/origin                  identifies that layer's file on disk; missing until the layer is flushed
//
// The documentation of package phase has a drawing of the phases of an entry. Only the functions in
// package phase change the phase of an entry.
//
// Locks are taken in the order of the arrows. A lock without an arrow into it is taken first, or
// alone:
//
//	entry.flushMu ─▶ entry.hotMu ─▶ moves ─┐
//	basesMu ───────────────────────────────┴▶ mu ─▶ nothing
//	backlog.mu ────────────────────────────▶ mu
//	flusher.mu, sealer.mu ───▶ nothing
//
// A goroutine holds flushMu or hotMu of a single snapshot while it copies, syncs and opens files of
// that snapshot. A goroutine may hold backlog.mu while it asks the RAM file system for sizes. A
// goroutine holds mu only for lookups: no file is opened, written or statted under mu.
package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/background"
	"github.com/forkd/forkd/internal/host/backlog"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/phase"
	"github.com/forkd/forkd/internal/host/reserve"
	"github.com/forkd/forkd/internal/host/turns"
	"github.com/forkd/forkd/internal/host/vault"
	"github.com/forkd/forkd/internal/host/writers"
	"github.com/forkd/forkd/internal/private"
)

// Config configures a store.
type Config struct {
	Root string // directory on disk, which Open creates if missing
	RAM  string // directory on tmpfs, which Open creates if missing; only this store uses it

	Events *event.Ring  // nil: events are dropped
	Vault  *vault.Vault // nil: encrypted snapshots cannot be used
}

// Store is the set of snapshots under one root. Its methods may be called concurrently.
type Store struct {
	root, ram       string
	rootDir, ramDir *os.File // the store's files are opened through these directories
	lock            *os.File
	sealer          *background.Queue    // computes digests of published snapshots
	flusher         *turns.Queue[*entry] // see newFlusher
	spare           *reserve.Reserve
	events          *event.Ring
	vault           *vault.Vault
	drops           sync.WaitGroup // removals of transient snapshots that are in progress

	gone    atomic.Pointer[func(*snapshot.Manifest)] // set by OnGone
	backlog *backlog.Backlog
	left    writers.Leftovers                    // files that could not be removed yet
	cooling atomic.Bool                          // coolUnused is running
	ramRoom func() (free, all uint64, err error) // returns the free bytes and the size of the RAM file system

	// held while a snapshot's directory is renamed; read-locked while a layer in such a directory
	// is linked
	moves   sync.RWMutex
	basesMu sync.Mutex // held while files of bases are added or removed

	mu sync.Mutex
	index
	reserved map[string]*Staging // snapshots that are being made, by tag
	torn     map[string]bool     // IDs of snapshots that were arriving when an earlier daemon ended; never changes
	idle     []*entry            // snapshots whose last lease has ended, latest last; some may be leased again
}

// entry is one published snapshot.
type entry struct {
	tag      string             // if the snapshot is unnamed: the name of its directory
	dir      string             // directory in snapshots/, or in staging/ if the snapshot is hot
	manifest *snapshot.Manifest // nil if damaged
	keys     []string           // keys of the snapshot's encrypted files; empty if it is not encrypted
	damage   error              // why the snapshot cannot be used
	created  time.Time

	phase.Life
	refs refs

	owner    string    // see Staging.For; empty for a snapshot of an earlier daemon
	awaited  bool      // see Staging.Awaited
	follower string    // owner of the sandboxes that follow the snapshot; guarded by Store.mu
	used     time.Time // end of the latest lease; zero if this daemon has not leased the snapshot; guarded by Store.mu

	flushed   chan struct{} // closed when the first flush has ended, even with an error; nil if no flush is needed
	flushErr  error         // error of the latest flush
	published time.Time     // when this daemon published the snapshot; zero for a snapshot of an earlier daemon
	flushTime time.Duration
	flushMu   sync.Mutex // held while flushing
	hurries   []hurry    // called for each attempt to flush the snapshot; guarded by Store.mu
	calm      []func()   // called when the next attempt to flush has ended; guarded by Store.mu

	hotMu sync.Mutex // held while files are opened or closed
	hot   *hotFiles  // nil until the first lease; guarded by hotMu
	// the files with which the snapshot arrived; older leases use these files; nil if there are
	// none; guarded by hotMu
	arrived *hotFiles
	served  bool // a process may still serve the files in arrived; guarded by Store.mu
	// set from Arrive until the snapshot has arrived; guarded by Store.mu
	arriving *arriving
}

// id returns the snapshot's ID, or "" if the snapshot is damaged.
func (e *entry) id() string {
	if e.manifest == nil {
		return ""
	}
	return e.manifest.ID
}

// tell emits an event of a snapshot. Transient snapshots have no events.
func (s *Store) tell(kind event.Kind, e *entry) {
	if e.manifest != nil && e.manifest.Transient {
		return
	}
	about := event.Event{Kind: kind, Owner: e.owner, Snapshot: e.tag}
	if e.manifest != nil && e.manifest.Branch != nil {
		about.Sandbox = e.manifest.Branch.SandboxID
	}
	s.events.Emit(about)
}

// Open takes over the store at cfg.Root. It removes what a crash has left, and reads every
// manifest. Damaged snapshots stay in the list, with the reason, and cannot be used. Open returns
// an error if another process owns the store.
func Open(cfg Config) (*Store, error) {
	s := &Store{root: filepath.Clean(cfg.Root), ram: filepath.Clean(cfg.RAM), events: cfg.Events,
		vault: cfg.Vault, index: newIndex(), reserved: make(map[string]*Staging), torn: make(map[string]bool)}
	s.ramRoom, s.spare = s.statRAM, reserve.New(filepath.Join(s.root, "reserve"), s.Room)
	s.backlog = s.newBacklog()
	var undo cleanup.Stack
	defer undo.Run()
	undo.Add(func() { s.closeDirs() })
	if err := s.openDirs(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if err := s.scan(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	undo.Release()
	s.spare.Keep()
	// After an error the snapshot stays unsealed: it can be used, but not verified. Verify reports the
	// error, and the next start tries again.
	s.sealer = background.New(func(ctx context.Context, tag string) { _ = s.seal(ctx, tag) })
	s.flusher = newFlusher(s)
	var unflushed []*entry
	for _, e := range s.byTag {
		switch {
		case e.IsUnnamed(): // an unnamed snapshot needs no background work, because it will be deleted soon
		case e.InRAM():
			unflushed = append(unflushed, e)
		case e.manifest != nil && !e.manifest.Sealed():
			s.sealer.Add(e.tag)
		}
	}
	slices.SortFunc(unflushed, func(a, b *entry) int { return a.created.Compare(b.created) })
	for _, e := range unflushed {
		s.flusher.Add(e)
	}
	return s, nil
}

// openDirs makes the store's directories and takes its lock.
func (s *Store) openDirs() (err error) {
	if s.rootDir, err = private.Dir(s.root, "--state-dir"); err != nil {
		return err
	}
	if s.ramDir, err = private.Dir(s.ram, "--ram-dir"); err != nil {
		return err
	}
	for _, dir := range []string{s.snapshots(), s.staging(), s.bases()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if s.lock, err = os.OpenFile(filepath.Join(s.root, "lock"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("%s: another daemon owns it (stop it, or use another --state-dir): %w", s.root, err)
	}
	return nil
}

// closeDirs closes the directories and releases the lock.
func (s *Store) closeDirs() error {
	var err error
	for _, f := range []*os.File{s.rootDir, s.ramDir, s.lock} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// Close flushes snapshots that are in RAM only, stops background work, closes all files and
// releases the store. Layers stay in RAM for the next daemon.
func (s *Store) Close() error {
	s.flusher.Close()
	s.drops.Wait()
	s.sealer.Close()
	s.left.Close()
	s.mu.Lock()
	entries := slices.Collect(maps.Values(s.byTag))
	s.mu.Unlock()
	for _, e := range entries { // without mu, because hotMu must not be taken under mu
		e.cool()
	}
	return s.closeDirs()
}

func (s *Store) snapshots() string         { return filepath.Join(s.root, "snapshots") }
func (s *Store) staging() string           { return filepath.Join(s.root, "staging") }
func (s *Store) dir(tag string) string     { return filepath.Join(s.snapshots(), tag) }
func (s *Store) layerDir(id string) string { return filepath.Join(s.ram, id) }
func (s *Store) ramLayer(id string) string {
	return filepath.Join(s.layerDir(id), snapshot.MemoryLayerFile)
}
func (s *Store) file(tag, name string) string { return filepath.Join(s.dir(tag), name) }

// Essential calls the function write, which writes small files that are needed even on a full disk.
// If the disk is full, Essential frees the reserve and calls the function again.
func (s *Store) Essential(write func() error) error { return s.spare.Essential(write) }

// scan reads the snapshots and removes what a crash has left.
func (s *Store) scan() error {
	dirs, err := os.ReadDir(s.snapshots())
	if err != nil {
		return err
	}
	var tags, graves []string
	for _, d := range dirs {
		if strings.HasPrefix(d.Name(), deletedPrefix) { // a crash has interrupted the deletion
			graves = append(graves, filepath.Join(s.snapshots(), d.Name()))
			continue
		}
		if id, ok := strings.CutPrefix(d.Name(), unnamedPrefix); ok {
			if err := s.reloadUnnamed(id); err != nil {
				return err
			}
			continue
		}
		if !d.IsDir() || snapshot.CheckTag(d.Name()) != nil {
			continue // a directory whose name is not a valid tag is not a snapshot
		}
		tags = append(tags, d.Name())
	}
	for _, e := range s.loadAll(tags) {
		s.addLocked(e)
	}
	s.refuseTwins()
	staged, err := os.ReadDir(s.staging())
	if err != nil {
		return err
	}
	kept, left := make(map[string]bool), slices.Clone(graves)
	for _, d := range staged {
		kept[d.Name()] = s.reload(d.Name())
		left = append(left, filepath.Join(s.staging(), d.Name()))
	}
	// Do this after reload, because a snapshot that reload takes over may have a key of a snapshot
	// that is being deleted.
	if err := s.destroyLeft(left); err != nil {
		return err
	}
	for _, grave := range graves {
		if err := os.RemoveAll(grave); err != nil {
			return err
		}
	}
	if err := s.emptyDir(s.staging(), func(name string) bool { return kept[name] }); err != nil {
		return err
	}
	// The copies of layers in RAM are not encrypted, so encrypted snapshots must not have any. A
	// daemon that was killed may have encrypted the files on disk after the copies were made.
	inClear := func(e *entry) bool { return len(e.keys) == 0 }
	hot := func(owner string) bool { return slices.ContainsFunc(s.memory[owner], inClear) }
	if err := s.emptyDir(s.ram, hot); err != nil {
		return err
	}
	return s.dropBases()
}

// refuseTwins marks snapshots as damaged if several of them have the same ID, because branches name
// their parent only by its ID.
func (s *Store) refuseTwins() {
	byID := make(map[string][]*entry)
	for _, e := range s.byTag {
		if e.manifest != nil {
			byID[e.manifest.ID] = append(byID[e.manifest.ID], e)
		}
	}
	for _, twins := range byID {
		for i, e := range twins {
			if len(twins) > 1 {
				err := fmt.Errorf("snapshot %q has the same id: remove one of them", twins[(i+1)%len(twins)].tag)
				s.dropLocked(e)
				e.manifest, e.damage = nil, &DamagedError{Tag: e.tag, File: snapshot.ManifestFile, Err: err}
				e.EnterLocked(phase.Damaged)
				s.addLocked(e)
			}
		}
	}
}

// loadAll returns the entries for many snapshot directories. It reads on all CPUs, because a host
// can have 100,000 suspended sandboxes, and no request is answered until their manifests are read.
func (s *Store) loadAll(tags []string) []*entry {
	entries := make([]*entry, len(tags))
	var g errgroup.Group
	g.SetLimit(runtime.NumCPU())
	for i, tag := range tags {
		g.Go(func() error {
			entries[i] = s.load(tag)
			return nil
		})
	}
	_ = g.Wait() // load returns no errors
	return entries
}

// load returns the entry for one snapshot directory.
func (s *Store) load(tag string) *entry {
	e := &entry{tag: tag, dir: s.dir(tag)}
	path := s.file(tag, snapshot.ManifestFile)
	if st, err := os.Stat(s.dir(tag)); err == nil {
		e.created = st.ModTime()
	}
	m, err := s.readManifest(path)
	if err == nil && m.Tag != tag {
		err = fmt.Errorf("manifest is that of tag %q: the directory was renamed", m.Tag)
	}
	if err == nil {
		e.keys, err = s.keysIn(e.dir, m.ID)
	} else {
		e.keys, _ = s.keysIn(e.dir, "") // the deletion of e destroys these keys; other deletions must keep them
	}
	if err != nil {
		e.damage = &DamagedError{Tag: tag, File: snapshot.ManifestFile, Err: err}
		e.EnterLocked(phase.Damaged)
		return e
	}
	e.EnterLocked(phase.Stored)
	e.manifest, e.created = m, m.Created
	return e
}

func (s *Store) readManifest(path string) (*snapshot.Manifest, error) {
	p, err := s.readBounded(path, snapshot.MaxManifest)
	if err != nil {
		return nil, err
	}
	return snapshot.ParseManifest(p)
}

// emptyDir removes the entries of dir. An entry stays if keep returns true for its name. If the VMM
// of an earlier daemon has a file open for writing, the file is removed later.
func (s *Store) emptyDir(dir string, keep func(name string) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !keep(e.Name()) {
			if err := s.left.Remove(filepath.Join(dir, e.Name()), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// dependentsLocked returns the tags, sorted, of snapshots that were branched from sandboxes of e.
func (s *Store) dependentsLocked(e *entry) []string {
	var tags []string
	if e.manifest == nil {
		return nil
	}
	for _, d := range s.children[e.manifest.ID] {
		if !d.IsUnnamed() {
			tags = append(tags, d.tag)
		}
	}
	slices.Sort(tags)
	return tags
}
