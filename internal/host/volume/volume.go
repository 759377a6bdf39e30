// Package volume stores the volumes of a host. A volume is a disk with a name. It outlives the
// sandboxes that use it.
//
// The data of a volume is in a base image and layers above it. At most one sandbox at a time is the
// writer of a volume. Its VM writes to the top, which is the latest layer. Other sandboxes get
// copies of their own.
//
// The package keeps records and files, and enforces quotas. It neither mounts a volume nor
// interprets its content, because guests write the content. docs/volumes.md describes the files.
package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/ext4"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/writers"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Bounds on volumes. MinSize and MaxSize are sizes in bytes. DefaultMiB is the size, in MiB, of a
// volume whose request gives no size.
const (
	DefaultMiB  = 1024
	MinSize     = ext4.MinSize
	MaxSize     = min(ext4.MaxSize, vm.MaxVolumeBytes)
	MaxPerOwner = 256 // maximum number of volumes of one owner
)

// Each volume has a directory with the volume's name, except while it is created or removed. No
// name of a volume begins with a dot.
const (
	newPrefix  = ".new-"  // begins the name of the directory of a volume that is being created
	gonePrefix = ".gone-" // begins the name of the directory of a volume that is being removed
	recordFile = "volume.json"
	baseFile   = "base.img"
)

// Config configures a Store.
type Config struct {
	Dir  string // directory of the volumes; only this Store uses it
	Most uint64 // maximum sum of the sizes of one owner's volumes, in bytes; 0: unlimited
	// Room returns an error if the file system of dir has too little room for this many bytes; nil: no
	// check.
	Room func(dir *os.File, bytes uint64) error
	Log  *slog.Logger
}

// Store holds the volumes of a host. Its methods may be called concurrently.
type Store struct {
	cfg      Config
	step     func(done string)    // called after each step that changes files; tests replace it
	patience time.Duration        // writers.Patience, except in tests
	merges   *gate.Gate           // limits the number of concurrent merges
	sync     func(*os.File) error // (*os.File).Sync, except in tests

	mu sync.Mutex // never held during file operations, except in Open
	// +checklocks:mu
	byName map[string]*volume
	// +checklocks:mu
	unread map[string]bool // names whose volumes cannot be used, and must not be overwritten
}

// volume is a volume of a Store. The Store's mu guards the record, the field ended and the phase. A
// goroutine that holds the volume's lock may read the record and the field ended without mu.
type volume struct {
	record.Volume        // content of the record
	dir           string // directory of the files
	private       bool   // whether the volume is a sandbox's own copy, which does not survive a power failure
	ended         bool   // whether the writer has ended, but could not be released; see releaseEnded
	phase         phase
	// The volume's lock, which is held while the record or the files change. A goroutine takes it by
	// sending a value, and frees it by receiving the value; the channel has room for one. The lock is
	// taken before mu.
	file chan struct{}
}

func (s *Store) newVolume(r *record.Volume, p phase) *volume {
	return &volume{Volume: *r, dir: s.path(r.Name), phase: p, file: make(chan struct{}, 1)}
}

// phase is the phase of a volume. In every phase the volume's name is taken, and its size counts
// against the owner's quota.
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
	Writer    string            // id of the sandbox that writes to the volume; empty: none, or it has ended
	Layers    int               // number of layers
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
		return fmt.Sprintf("volume %.100q: exists, but cannot be used: "+
			"the daemon's log names the file and the reason", e.Name)
	case e.Exists:
		return fmt.Sprintf("volume %.100q: exists; remove it first or choose another name", e.Name)
	}
	return fmt.Sprintf("volume %.100q: not found", e.Name)
}

// Open returns a Store with the volumes that an earlier daemon left in cfg.Dir. It removes the files
// of volumes whose creation or removal was interrupted.
func Open(cfg Config) (*Store, error) {
	s := &Store{cfg: cfg, step: func(string) {}, patience: writers.Patience, byName: make(map[string]*volume),
		unread: make(map[string]bool), merges: gate.New(mergesAtOnce), sync: (*os.File).Sync}
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
			err = fmt.Errorf("%s: id: %q is also the id of volume %q: copy volumes with forkd volume snapshot",
				filepath.Join(path, recordFile), r.ID, ids[r.ID])
		}
		if err != nil {
			cfg.Log.Error("a volume cannot be used", "name", name, "error", err)
			s.unread[name] = true
			continue
		}
		if err := tidy(path, r); err != nil {
			cfg.Log.Warn("files of a volume are left", "name", name, "error", err)
		}
		ids[r.ID] = name
		s.byName[name] = s.newVolume(r, ready)
	}
	return s, nil
}

// read reads the record of the volume in dir, which must have the given name, and checks the
// volume's files. If name is empty, the volume may have any name.
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
	if name != "" && r.Name != name {
		return nil, &record.Error{Path: path, Field: "name",
			Reason: fmt.Sprintf("%q: want the name of the directory", r.Name)}
	}
	if r.SizeBytes < MinSize || r.SizeBytes > MaxSize || r.SizeBytes%ext4.BlockSize != 0 {
		return nil, &record.Error{Path: path, Field: "size_bytes",
			Reason: fmt.Sprintf("%d: want a multiple of %d from %d to %d", r.SizeBytes, ext4.BlockSize, uint64(MinSize),
				uint64(MaxSize))}
	}
	if err := checkFile(filepath.Join(dir, baseFile), r.SizeBytes); err != nil {
		return nil, err
	}
	_, _, layerSize := disklayer.Layout(r.SizeBytes)
	for i, f := range r.Files() {
		if !strings.HasSuffix(f, layerSuffix) {
			return nil, &record.Error{Path: path, Field: "layers",
				Reason: fmt.Sprintf("%.100q: want a name that ends with %s", f, layerSuffix)}
		}
		file := filepath.Join(dir, f)
		if i < len(r.Layers) && (r.Writer == nil || !slices.Contains(r.Writer.Own, f)) {
			err = checkFile(file, layerSize)
		} else {
			_, err = os.Lstat(file) // the VM may have damaged it; see seal
		}
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

// checkFile returns an error unless path is a regular file of the given size.
func checkFile(path string, size uint64) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || uint64(info.Size()) != size {
		return fmt.Errorf("%s: %v of %d bytes: want a file of %d bytes", path, info.Mode(), info.Size(), size)
	}
	return nil
}

// tidy removes files that the volume's record does not name, except damaged layers.
func tidy(dir string, r *record.Volume) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	known := append(r.Files(), baseFile, recordFile)
	for _, e := range entries {
		name := e.Name()
		if !slices.Contains(known, name) && !strings.HasSuffix(name, damagedSuffix) {
			err = errors.Join(err, writers.Remove(filepath.Join(dir, name), 0))
		}
	}
	return err
}

func (s *Store) path(name string) string { return filepath.Join(s.cfg.Dir, name) }

// Get returns the Info of a volume. The error is an *Error.
func (s *Store) Get(name string) (Info, error) {
	s.mu.Lock()
	v, unread := s.byName[name], s.unread[name]
	if v == nil || v.phase != ready {
		s.mu.Unlock()
		return Info{}, &Error{Name: name, Unread: unread}
	}
	info := infoOf(v)
	s.mu.Unlock()
	return s.measured(info), nil
}

// GetID returns the Info of the volume with the given id. If there is no such volume, or if the
// given function returns false for its name, the error is an *Error with the id as the name.
func (s *Store) GetID(id string, may func(name string) bool) (Info, error) {
	name := ""
	s.mu.Lock()
	for _, v := range s.byName {
		if v.ID == id && v.phase == ready && may(v.Name) {
			name = v.Name
		}
	}
	s.mu.Unlock()
	if name == "" {
		return Info{}, &Error{Name: id}
	}
	i, err := s.Get(name)
	if err == nil && i.ID != id { // the volume was removed, and its name was used again
		err = &Error{Name: id}
	}
	return i, err
}

// List returns the Info of all volumes whose names the given function permits, sorted by name. If
// the function is nil, all names are permitted. List reads only the directories of these volumes.
func (s *Store) List(may func(name string) bool) []Info {
	s.mu.Lock()
	var infos []Info
	for _, v := range s.byName {
		if v.phase == ready && (may == nil || may(v.Name)) {
			infos = append(infos, infoOf(v))
		}
	}
	s.mu.Unlock()
	slices.SortFunc(infos, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	for i := range infos {
		infos[i] = s.measured(infos[i])
	}
	return infos
}

// infoOf returns the Info of a volume without DiskBytes.
func infoOf(v *volume) Info {
	info := Info{ID: v.ID, Name: v.Name, Owner: v.Owner, Created: v.Created, SizeBytes: v.SizeBytes, Labels: v.Labels,
		Layers: len(v.Layers)}
	if v.Writer != nil && !v.ended {
		info.Writer = v.Writer.SandboxID
	}
	return info
}

// measured returns i with DiskBytes. If the volume was removed in the meantime, DiskBytes is 0.
func (s *Store) measured(i Info) Info {
	bytes, err := diskBytes(s.path(i.Name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.cfg.Log.Warn("disk usage of a volume", "name", i.Name, "error", err)
	}
	i.DiskBytes = bytes
	return i
}
