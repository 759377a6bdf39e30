package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/writers"
)

const (
	layerSuffix   = ".layer"   // ends the names of layers
	damagedSuffix = ".damaged" // added to the names of layers that a VM has damaged; no volume uses them any more
	// maxLayers is the maximum number of layers of a volume that gets a new top. Each layer takes one
	// descriptor of a request to a VMM, and a request has at most 253 descriptors: the state, 32 layers of
	// memory, the root disk with 32 layers, and 8 volumes. Each disk also has a base image and a top.
	maxLayers = 20
)

// FilesWriter is the prefix of the names of writers that are not sandboxes, but requests for the
// files of a volume.
const FilesWriter = "files-"

// InUseError reports that a volume has a writer.
type InUseError struct {
	Name      string
	SandboxID string // the writer
	Ended     bool   // whether the writer has ended, but its VM's process still has the volume open
	Branching bool   // whether the writer is being branched, which would make a copy wait
}

func (e *InUseError) Error() string {
	if e.Ended {
		return fmt.Sprintf("volume %.100q: sandbox %q has ended, but its VM has not closed the volume yet: try again later",
			e.Name, e.SandboxID)
	}
	if e.Branching {
		return fmt.Sprintf("volume %.100q: sandbox %q, which writes to it, is being branched: try again later", e.Name,
			e.SandboxID)
	}
	if strings.HasPrefix(e.SandboxID, FilesWriter) {
		return fmt.Sprintf("volume %.100q: a request changes its files: try again later", e.Name)
	}
	return fmt.Sprintf("volume %.100q: sandbox %q writes to it: end the sandbox first", e.Name, e.SandboxID)
}

// Files are the open files of a volume's disk.
type Files struct {
	SizeBytes uint64
	Lower     []*os.File // base image and layers, oldest first, open for reading
	Top       *os.File   // an empty layer, open for reading and writing
}

// Close closes the files.
func (f *Files) Close() {
	for _, file := range append(f.Lower, f.Top) {
		if file != nil {
			_ = file.Close() // nothing was written through these descriptors
		}
	}
}

// Write makes a sandbox the writer of a volume, and returns the files for the sandbox's VM, with a
// new top. The caller must close the files. If the sandbox is the writer already, its earlier VM must
// have exited, and the data that this VM has written becomes a part of the volume. The error is an
// *Error if there is no such volume, or an *InUseError if another sandbox is the writer. Any other
// error loses no data, but the sandbox may then be the writer.
func (s *Store) Write(ctx context.Context, name, sandbox string) (*Files, error) {
	v, unlock, err := s.lock(ctx, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := s.releaseEnded(ctx, v); err != nil {
		return nil, err
	}
	if w := v.Writer; w != nil && w.SandboxID != sandbox {
		return nil, &InUseError{Name: name, SandboxID: w.SandboxID}
	}
	if v.Writer != nil {
		if err := s.seal(ctx, v, &record.VolumeWriter{SandboxID: sandbox}); err != nil {
			return nil, fmt.Errorf("volume %q: %w", name, err)
		}
	}
	f, err := s.open(v, sandbox)
	if err != nil {
		return nil, fmt.Errorf("volume %q: %w", name, err)
	}
	return f, nil
}

// open opens the files of a volume, and records a new top for its writer.
func (s *Store) open(v *volume, sandbox string) (f *Files, err error) {
	if f, err = s.openLower(v, v.Layers); err != nil {
		return nil, err
	}
	var top string
	if f.Top, top, err = s.newTop(v); err == nil {
		err = s.save(v, func(r *record.Volume) { r.Writer = &record.VolumeWriter{SandboxID: sandbox, Top: top} })
		if err != nil {
			s.drop(v, top)
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openLower opens the base image and the given layers of a volume.
func (s *Store) openLower(v *volume, layers []string) (*Files, error) {
	if len(layers) > maxLayers {
		return nil, fmt.Errorf("%d layers, at most %d: merge them first", len(layers), maxLayers)
	}
	f := &Files{SizeBytes: v.SizeBytes}
	for _, name := range append([]string{baseFile}, layers...) {
		file, err := os.Open(filepath.Join(v.dir, name))
		if err != nil {
			f.Close()
			return nil, err
		}
		f.Lower = append(f.Lower, file)
	}
	return f, nil
}

// newTop makes an empty layer. If the volume is not private, the layer survives a power failure. If
// no record names the layer, the next start removes it.
func (s *Store) newTop(v *volume) (f *os.File, name string, err error) {
	dir := v.dir
	name = snapshot.NewID() + layerSuffix
	if f, err = os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return nil, "", err
	}
	s.step("made a top")
	if err = disklayer.Format(f, v.SizeBytes); err == nil && !v.private {
		err = errors.Join(f.Sync(), atomicfile.SyncDir(dir))
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the next start removes what stays
		return nil, "", errors.Join(err, f.Close())
	}
	s.step("wrote a top")
	return f, name, nil
}

// Release turns the data that a sandbox has written into a durable part of the volume. The volume
// then has no writer. The sandbox's VM must have exited. If the sandbox is not the writer, Release
// does nothing. After an error, the next call that needs the volume without its writer tries again.
func (s *Store) Release(ctx context.Context, name, sandbox string) error {
	v, unlock, err := s.lockFor(ctx, name, sandbox)
	if inUse := (*InUseError)(nil); errors.As(err, &inUse) || errors.Is(err, errNoWriter) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	err = s.seal(ctx, v, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	v.ended = v.Writer != nil // true only after an error
	return err
}

// releaseEnded tries again to release a volume whose writer has ended. It does nothing if the writer
// still exists. If the writer's VM has not closed the volume, the error is an *InUseError.
// Preconditions: the volume is locked.
func (s *Store) releaseEnded(ctx context.Context, v *volume) error {
	if !v.ended {
		return nil
	}
	sandbox := v.Writer.SandboxID
	err := s.seal(ctx, v, nil)
	if errors.As(err, new(*writers.Error)) {
		return &InUseError{Name: v.Name, SandboxID: sandbox, Ended: true}
	}
	if err != nil {
		return fmt.Errorf("volume %q: keep the data of sandbox %q, which has ended: %w", v.Name, sandbox, err)
	}
	return nil
}

// ReleaseAll calls Release for all volumes that a sandbox writes to, except the volumes with the
// given names. The sandbox's VM must have exited, or must have closed the volumes that are
// released. A nil Store has no volumes.
func (s *Store) ReleaseAll(sandbox string, keep ...string) {
	if s == nil {
		return
	}
	var names []string
	s.mu.Lock()
	for _, v := range s.byName {
		if v.Writer != nil && v.Writer.SandboxID == sandbox && !slices.Contains(keep, v.Name) {
			names = append(names, v.Name)
		}
	}
	s.mu.Unlock()
	for _, name := range names {
		if err := s.Release(context.Background(), name, sandbox); err != nil {
			s.cfg.Log.Error("a volume could not be released by a sandbox that does not use it any more; its next use tries "+
				"again", "name", name, "sandbox", sandbox, "error", err)
		}
	}
}

// Recover frees all volumes whose writers do not exist any more. The given function reports whether
// a sandbox exists, or may still run. No sandbox may become a writer during the call. Recover does
// not wait for a disk; the volumes are released by ReleaseEnded, or before their next use.
func (s *Store) Recover(exists func(sandbox string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.byName {
		v.ended = v.Writer != nil && !exists(v.Writer.SandboxID)
	}
}

// releasesAtOnce is the maximum number of volumes that ReleaseEnded releases at the same time.
const releasesAtOnce = 4

// ReleaseEnded releases all volumes whose writers have ended. It may take minutes, because it waits for
// the disk.
func (s *Store) ReleaseEnded(ctx context.Context) {
	var names []string
	s.mu.Lock()
	for _, v := range s.byName {
		if v.ended {
			names = append(names, v.Name)
		}
	}
	s.mu.Unlock()
	gate.Each(releasesAtOnce, names, func(_ int, name string) {
		v, unlock, err := s.lock(ctx, name)
		if err != nil {
			return // the volume has been removed, or the daemon stops
		}
		defer unlock()
		if err := s.releaseEnded(ctx, v); err != nil {
			s.cfg.Log.Error("a volume could not be released by a sandbox of an earlier daemon; its next use tries again",
				"name", name, "error", err)
		}
	})
}

// seal turns the writer's tops into layers. The given writer is the next writer of the volume; nil:
// none. Usually there is one top. If a branch or a rollback was interrupted, there are two. A VM
// may have written to either top, so each top that is not empty becomes a layer. seal also drops a
// top that is missing or not a valid layer. It keeps the file of an invalid top under another name,
// but only until the next invalid top, because the file may be large. Only a VMM that its guest
// controls damages a top. Such a VMM may also have damaged a top that has become a layer at a
// branch. seal then drops this layer and all later ones.
func (s *Store) seal(ctx context.Context, v *volume, now *record.VolumeWriter) error {
	var kept, empty []string
	sound, damaged, err := s.soundLayers(v)
	if err != nil {
		return err
	}
	for _, top := range v.Tops() {
		none, err := s.settle(ctx, v, filepath.Join(v.dir, top))
		isDamaged := errors.Is(err, disklayer.ErrFormat) || errors.Is(err, fs.ErrNotExist)
		switch {
		case err != nil && !isDamaged:
			return err
		case isDamaged || len(damaged) > 0: // without the top below it, a top is of no use
			damaged = append(damaged, top)
			s.cfg.Log.Error("a sandbox has damaged a volume, whose latest changes are lost", "name", v.Name, "sandbox",
				v.Writer.SandboxID, "error", err)
		case none:
			empty = append(empty, top)
		default:
			kept = append(kept, top)
		}
	}
	err = s.syncLayers(v)
	if err == nil {
		err = s.save(v, func(r *record.Volume) { r.Writer, r.Layers = now, append(r.Layers[:sound:sound], kept...) })
	}
	if err != nil {
		return err
	}
	s.drop(v, empty...)
	if len(damaged) > 0 {
		s.dropDamaged(v)
	}
	for _, top := range damaged {
		file := filepath.Join(v.dir, top)
		_ = os.Rename(file, file+damagedSuffix) // fails if the file is gone
	}
	s.step("removed the top")
	return nil
}

// soundLayers returns how many layers of a volume can be kept, and the names of the other layers.
// If the present writer has not written a layer, an earlier call of seal has checked the layer.
func (s *Store) soundLayers(v *volume) (sound int, damaged []string, err error) {
	for i, name := range v.Layers {
		if v.Writer == nil || !slices.Contains(v.Writer.Own, name) {
			continue
		}
		f, err := os.Open(filepath.Join(v.dir, name))
		if err == nil {
			err = errors.Join(checkLayer(v, f), f.Close())
		}
		switch {
		case errors.Is(err, disklayer.ErrFormat), errors.Is(err, fs.ErrNotExist):
			s.cfg.Log.Error("a sandbox has damaged a volume, whose changes since an earlier branch are lost", "name", v.Name,
				"sandbox", v.Writer.SandboxID, "error", err)
			return i, slices.Clone(v.Layers[i:]), nil
		case err != nil:
			return 0, nil, err
		}
	}
	return len(v.Layers), nil, nil
}

// dropDamaged removes the damaged layers of a volume. Files that cannot be removed stay.
func (s *Store) dropDamaged(v *volume) {
	old, _ := filepath.Glob(filepath.Join(v.dir, "*"+damagedSuffix)) // the pattern is valid
	for _, path := range old {
		if err := writers.Remove(path, 0); err != nil {
			s.cfg.Log.Warn("a damaged file of a volume is left", "name", v.Name, "error", err)
		}
	}
}

// Sync makes the data of layers durable. A VM may have written data before a branch without syncing
// it. A VMM syncs only files that it has written since its latest restore.
func (s *Store) Sync(layers []*os.File) error {
	for _, f := range layers {
		if err := s.sync(f); err != nil {
			return fmt.Errorf("sync %s: %w", f.Name(), err)
		}
	}
	return nil
}

// syncLayers syncs the layers of a volume. A branch may have made a layer whose data no guest has
// flushed.
func (s *Store) syncLayers(v *volume) error {
	for _, name := range v.Layers {
		f, err := os.Open(filepath.Join(v.dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // nothing to sync; the next use of the layer reports that it is missing
		}
		if err == nil {
			err = errors.Join(s.Sync([]*os.File{f}), f.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// errFound ends the search for data in a top.
var errFound = errors.New("found")

// settle makes a top durable, and reports whether the top has no data. It returns an error if a
// process can still write to the top, and disklayer.ErrFormat if the top is not a valid layer.
func (s *Store) settle(ctx context.Context, v *volume, path string) (empty bool, err error) {
	if err := writers.None(path, s.patience); err != nil {
		return false, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := checkLayer(v, f); err != nil {
		return false, err
	}
	err = disklayer.Written(ctx, []*os.File{f}, func(uint64, uint64) error { return errFound })
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, errFound) {
		return false, err
	}
	return false, s.sync(f)
}

// checkLayer returns disklayer.ErrFormat unless f is a layer of the volume.
func checkLayer(v *volume, f *os.File) error {
	size, err := disklayer.SizeOf(f)
	if err == nil && size != v.SizeBytes {
		err = fmt.Errorf("%w: %s is of a disk of %d bytes, want %d", disklayer.ErrFormat, f.Name(), size, v.SizeBytes)
	}
	return err
}
