// Package store keeps the snapshots of one host: directories on disk that are published whole or not at all, copies of
// hot memory layers on a RAM file system, leases that protect what is in use, and the rules of deletion.
//
// It starts no VM, knows nothing of the content of vmstate and layers, and never hashes or copies on the way of a fork:
// the first use of a snapshot opens its files (and reads its memory layers back into RAM if they are not there), later
// ones share them. Images belong to package image; a snapshot only names its base.
//
// Layout:
//
//	<root>/lock                        held by the daemon that owns the store
//	<root>/snapshots/<tag>/            a published snapshot, see package snapshot for its files
//	<root>/staging/<id>/               a snapshot being made, or published hot and not flushed yet. The next start goes
//	                                   on with the latter if its memory layer is still in RAM, and removes the rest
//	<ram>/<id>/memory.layer            the hot copy of a snapshot's memory layer
package store

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/snapshot"
)

// Config says where a store lives.
type Config struct {
	Root string // directory on disk, created if missing
	RAM  string // directory on tmpfs, created if missing; of this store alone
}

// Store is the set of snapshots under one root. Its methods may be called concurrently.
type Store struct {
	root, ram string
	lock      *os.File
	sealer    *sealer
	flusher   *flusher
	drops     sync.WaitGroup // removals of transient snapshots

	mu       sync.Mutex
	byTag    map[string]*entry
	reserved map[string]*Staging // by tag, in flight
	idle     []*entry            // whose last lease has ended, the most recent last; some of them may be leased again
}

// entry is one published snapshot.
type entry struct {
	tag      string
	dir      string             // in snapshots, or in staging while unflushed
	manifest *snapshot.Manifest // nil if damaged
	damage   error              // why the snapshot cannot be used
	phantom  bool               // see Failed
	created  time.Time
	leases   int
	pins     int // by suspended sandboxes: as a lease, but no file is open
	deleting bool

	unflushed bool          // its memory layer, at least, is in RAM only
	flushed   chan struct{} // closed when the first flush has ended, well or not; nil if there was none
	flushErr  error         // of the latest one
	published time.Time     // by this daemon
	flushTime time.Duration
	flushMu   sync.Mutex // held while flushing

	hotMu sync.Mutex // serializes the first use
	hot   *hotFiles  // nil until first used; guarded by hotMu
}

// Open takes over the store at cfg.Root: it removes what a crash left behind and reads every manifest. Damaged
// snapshots stay listed, with the reason, and cannot be used. It fails if another process owns the store.
func Open(cfg Config) (*Store, error) {
	s := &Store{root: cfg.Root, ram: cfg.RAM, byTag: make(map[string]*entry), reserved: make(map[string]*Staging)}
	for _, dir := range []string{s.root, s.snapshots(), s.staging(), s.ram} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(s.root, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("open store %s: another daemon owns it (stop it, or use another --state-dir): %w", s.root, err)
	}
	s.lock = lock
	if err := s.scan(); err != nil {
		lock.Close()
		return nil, fmt.Errorf("open store: %w", err)
	}
	s.sealer, s.flusher = newSealer(s), newFlusher(s)
	var unflushed []*entry
	for _, e := range s.byTag {
		switch {
		case e.unflushed:
			unflushed = append(unflushed, e)
		case e.manifest != nil && !sealed(e.manifest):
			s.sealer.add(e.tag)
		}
	}
	slices.SortFunc(unflushed, func(a, b *entry) int { return a.created.Compare(b.created) })
	for _, e := range unflushed {
		s.flusher.add(e)
	}
	return s, nil
}

// Close flushes what is in RAM only, stops background work, closes the files of hot snapshots and gives the store up. Snapshots stay hot in RAM for
// the next owner.
func (s *Store) Close() error {
	s.flusher.close()
	s.drops.Wait()
	s.sealer.close()
	s.mu.Lock()
	entries := slices.Collect(maps.Values(s.byTag))
	s.mu.Unlock()
	for _, e := range entries { // outside of mu: heat takes the locks in the other order
		e.cool()
	}
	return s.lock.Close()
}

func (s *Store) snapshots() string       { return filepath.Join(s.root, "snapshots") }
func (s *Store) staging() string         { return filepath.Join(s.root, "staging") }
func (s *Store) dir(tag string) string   { return filepath.Join(s.snapshots(), tag) }
func (s *Store) ramDir(id string) string { return filepath.Join(s.ram, id) }
func (s *Store) ramLayer(id string) string {
	return filepath.Join(s.ramDir(id), snapshot.MemoryLayerFile)
}
func (s *Store) file(tag, name string) string { return filepath.Join(s.dir(tag), name) }

// scan reads the snapshots and removes leftovers.
func (s *Store) scan() error {
	dirs, err := os.ReadDir(s.snapshots())
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if strings.HasPrefix(d.Name(), deletedPrefix) { // a deletion that a crash cut short
			if err := os.RemoveAll(filepath.Join(s.snapshots(), d.Name())); err != nil {
				return err
			}
			continue
		}
		if !d.IsDir() || snapshot.CheckTag(d.Name()) != nil {
			continue // not ours to judge: nothing can name it
		}
		e := s.load(d.Name())
		s.byTag[e.tag] = e
	}
	if err := emptyDir(s.staging(), s.reload); err != nil {
		return err
	}
	return emptyDir(s.ram, s.ownsMemoryLocked)
}

// load reads one snapshot directory.
func (s *Store) load(tag string) *entry {
	e := &entry{tag: tag, dir: s.dir(tag)}
	path := s.file(tag, snapshot.ManifestFile)
	if st, err := os.Stat(s.dir(tag)); err == nil {
		e.created = st.ModTime()
	}
	m, err := readManifest(path)
	if err == nil && m.Tag != tag {
		err = fmt.Errorf("manifest is that of tag %q: the directory was renamed", m.Tag)
	}
	if err != nil {
		e.damage = &DamagedError{Tag: tag, File: snapshot.ManifestFile, Err: err}
		return e
	}
	e.manifest, e.created = m, m.Created
	return e
}

func readManifest(path string) (*snapshot.Manifest, error) {
	p, err := readBounded(path, snapshot.MaxManifest)
	if err != nil {
		return nil, err
	}
	return snapshot.ParseManifest(p)
}

// readBounded reads a whole file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	st, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errors.New("file is missing")
	}
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > limit {
		return nil, fmt.Errorf("not a regular file of at most %d bytes", limit)
	}
	return os.ReadFile(path)
}

// emptyDir removes everything in dir whose name keep does not claim.
func emptyDir(dir string, keep func(name string) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !keep(e.Name()) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// byIDLocked returns the snapshot with an ID, or nil.
func (s *Store) byIDLocked(id string) *entry {
	for _, e := range s.byTag {
		if e.manifest != nil && e.manifest.ID == id {
			return e
		}
	}
	return nil
}

// ownsMemoryLocked reports whether a snapshot needs the memory layer of owner.
func (s *Store) ownsMemoryLocked(owner string) bool {
	for _, e := range s.byTag {
		if e.manifest == nil {
			continue
		}
		for _, l := range e.manifest.Memory {
			if l.Owner == owner {
				return true
			}
		}
	}
	return false
}

// dependentsLocked returns the tags whose snapshots were branched from e's sandboxes, sorted.
func (s *Store) dependentsLocked(e *entry) []string {
	var tags []string
	if e.manifest == nil {
		return nil
	}
	for _, d := range s.byTag {
		if d.manifest != nil && d.manifest.Parent != nil && d.manifest.Parent.ID == e.manifest.ID {
			tags = append(tags, d.tag)
		}
	}
	slices.Sort(tags)
	return tags
}
