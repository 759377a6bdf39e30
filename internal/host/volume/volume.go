// Package volume stores the volumes of a host. A volume is a disk with a name, which outlives the
// sandboxes that use it.
//
// It keeps records and files, and enforces quotas. It neither mounts a volume nor reads a byte of
// its content, because guests write the content. docs/volumes.md describes the files.
package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/format/ext4"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Bounds on volumes.
const (
	MinSize     = ext4.MinSize // bytes
	MaxSize     = min(ext4.MaxSize, vm.MaxVolumeBytes)
	MaxPerOwner = 256 // maximum number of volumes of one owner
)

// Names in the directory of volumes, and of the files of one volume. No name of a volume begins
// with a dot.
const (
	newPrefix  = ".new-"  // of the directory of a volume that is being created
	gonePrefix = ".gone-" // of the directory of a volume that is being removed
	recordFile = "volume.json"
	baseFile   = "base.img"
)

// Config configures a Store.
type Config struct {
	Dir  string                   // directory of the volumes; only this Store uses it
	Most uint64                   // maximum bytes of all volumes of one owner together; 0: unlimited
	Room func(dir *os.File) error // returns an error if the file system of dir has too little room; nil: no check
	Log  *slog.Logger
}

// Store holds the volumes of a host. Its methods may be called concurrently.
type Store struct {
	cfg  Config
	step func(done string) // called after each step that changes files; tests replace it

	mu sync.Mutex // never held during file operations, except in Open
	// +checklocks:mu
	byName map[string]*volume
	// +checklocks:mu
	unread map[string]bool // names whose volumes cannot be used, and must not be overwritten
}

// volume is a volume of a Store. The Store's mu guards the phase.
type volume struct {
	record.Volume
	phase phase
}

// phase is the phase of a volume. In every phase the volume's name is taken, and its size counts.
type phase uint8

const (
	creating phase = iota
	ready
	removing
)

// Info describes a volume.
type Info struct {
	ID        string
	Name      string
	Owner     string
	Created   time.Time
	SizeBytes uint64            // size of the disk that sandboxes see
	DiskBytes uint64            // bytes that the volume takes on the host's disk
	Labels    map[string]string // must not be changed
}

// Error reports that a volume does not exist, that it already exists, or that it cannot be used.
type Error struct {
	Name   string
	Exists bool
	Unread bool // the volume exists, but its record or its files cannot be used
}

func (e *Error) Error() string {
	switch {
	case e.Unread:
		return fmt.Sprintf("volume %.100q: exists, but cannot be used: the daemon's log names the file and the reason", e.Name)
	case e.Exists:
		return fmt.Sprintf("volume %.100q: exists; remove it first or choose another name", e.Name)
	}
	return fmt.Sprintf("volume %.100q: not found", e.Name)
}

// Open returns the volumes that an earlier daemon left in cfg.Dir. It removes the files of volumes
// whose creation or removal was interrupted.
func Open(cfg Config) (*Store, error) {
	s := &Store{cfg: cfg, step: func(string) {}, byName: make(map[string]*volume), unread: make(map[string]bool)}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	ids := make(map[string]string)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		name, path := e.Name(), filepath.Join(cfg.Dir, e.Name())
		switch {
		case strings.HasPrefix(name, newPrefix), strings.HasPrefix(name, gonePrefix):
			if err := os.RemoveAll(path); err != nil {
				cfg.Log.Warn("files of an unfinished or removed volume are left", "error", err)
			}
			continue
		case snapshot.CheckTag(name) != nil:
			cfg.Log.Warn("a file among the volumes is not a volume", "path", path)
			continue
		}
		r, err := read(path, name)
		if err == nil && ids[r.ID] != "" {
			err = fmt.Errorf("%s: id: %q, as of volume %q: want a copy to be made with forkd", filepath.Join(path, recordFile),
				r.ID, ids[r.ID])
		}
		if err != nil {
			cfg.Log.Error("a volume cannot be used", "name", name, "error", err)
			s.unread[name] = true
			continue
		}
		ids[r.ID] = name
		s.byName[name] = &volume{Volume: *r, phase: ready}
	}
	return s, nil
}

// read reads the record of the volume in dir, which must have the given name, and checks the
// volume's files.
func read(dir, name string) (*record.Volume, error) {
	path := filepath.Join(dir, recordFile)
	p, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r, err := record.ParseVolume(path, p)
	if err != nil {
		return nil, err
	}
	if r.Name != name {
		return nil, &record.Error{Path: path, Field: "name",
			Reason: fmt.Sprintf("%q: want the name of the directory", r.Name)}
	}
	if r.SizeBytes < MinSize || r.SizeBytes > MaxSize || r.SizeBytes%ext4.BlockSize != 0 {
		return nil, &record.Error{Path: path, Field: "size_bytes",
			Reason: fmt.Sprintf("%d: want a multiple of %d from %d to %d", r.SizeBytes, ext4.BlockSize, uint64(MinSize),
				uint64(MaxSize))}
	}
	base := filepath.Join(dir, baseFile)
	info, err := os.Lstat(base)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || uint64(info.Size()) != r.SizeBytes {
		return nil, fmt.Errorf("%s: %v of %d bytes: want a file of %d bytes", base, info.Mode(), info.Size(), r.SizeBytes)
	}
	return r, nil
}

func (s *Store) path(name string) string { return filepath.Join(s.cfg.Dir, name) }

// Get returns the Info of a volume. The error is an *Error.
func (s *Store) Get(name string) (Info, error) {
	s.mu.Lock()
	v, unread := s.byName[name], s.unread[name]
	ok := v != nil && v.phase == ready
	s.mu.Unlock()
	if !ok {
		return Info{}, &Error{Name: name, Unread: unread}
	}
	return s.info(v), nil
}

// List returns the Info of all volumes, sorted by name.
func (s *Store) List() []Info {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.byName))
	all = slices.DeleteFunc(all, func(v *volume) bool { return v.phase != ready })
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *volume) int { return strings.Compare(a.Name, b.Name) })
	infos := make([]Info, len(all))
	for i, v := range all {
		infos[i] = s.info(v)
	}
	return infos
}

// info describes a volume that is ready. If the volume is removed in the meantime, its DiskBytes are
// 0.
func (s *Store) info(v *volume) Info {
	bytes, err := diskBytes(s.path(v.Name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.cfg.Log.Warn("disk usage of a volume", "name", v.Name, "error", err)
	}
	return Info{ID: v.ID, Name: v.Name, Owner: v.Owner, Created: v.Created, SizeBytes: v.SizeBytes, DiskBytes: bytes,
		Labels: v.Labels}
}
