package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/hardlink"
	"github.com/forkd/forkd/internal/host/writers"
)

// Disk names the disk that a sandbox has in a volume slot. It is the disk of a volume that the sandbox
// writes to, or the sandbox's own copy of a volume. A copy is a directory with the files of a volume;
// it counts against no quota, and does not survive a power failure.
type Disk struct {
	Sandbox string
	Owner   string // owner of the sandbox, whose concurrent merges are limited
	Name    string // name of the volume
	Copy    string // directory of the copy; empty: the sandbox writes to the volume itself
}

// hold returns the volume or the copy of a disk, and holds its lock until the caller calls unlock. A
// copy needs no lock, because only one operation at a time works on its sandbox.
func (s *Store) hold(ctx context.Context, d Disk) (v *volume, unlock func(), err error) {
	if d.Copy == "" {
		return s.lockFor(ctx, d.Name, d.Sandbox)
	}
	r, err := read(d.Copy, "")
	if err != nil {
		return nil, nil, fmt.Errorf("copy of volume %q: %w", d.Name, err)
	}
	return &volume{Volume: *r, dir: d.Copy, private: true, phase: ready}, func() {}, nil
}

// Copy makes a sandbox's own copy of a volume, with the present content of the volume. If the
// volume has a writer, the copy has the content at the writer's latest branch, suspension or
// rollback or, if there was none, at its mount. This content is the file system at one instant, as
// after a power failure. The files of the copy are hard links, so that the copy stays when the
// volume changes or is removed.
func (s *Store) Copy(ctx context.Context, d Disk) error {
	v, unlock, err := s.lock(ctx, d.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.releaseEnded(ctx, v); err != nil {
		return err
	}
	if err := s.checkOwn(v); err != nil {
		return err
	}
	r := v.Volume
	r.Layers, r.Writer = slices.Clone(v.Layers), nil
	return s.makeCopy(d, &r, func(_ int, name, to string) error { return hardlink.Link(filepath.Join(v.dir, name), to) })
}

// checkOwn returns an error if the VM of a volume's writer may still change layers that the writer
// has made, or if the VM has damaged such a layer. The error is an *InUseError if a branch of the
// writer has not ended.
func (s *Store) checkOwn(v *volume) error {
	for _, name := range v.Layers {
		if v.Writer == nil || !slices.Contains(v.Writer.Own, name) {
			continue
		}
		path := filepath.Join(v.dir, name)
		err := writers.None(path, s.patience)
		if errors.As(err, new(*writers.Error)) {
			return &InUseError{Name: v.Name, SandboxID: v.Writer.SandboxID, Branching: true}
		}
		if err == nil {
			var f *os.File
			if f, err = os.Open(path); err == nil {
				err = errors.Join(checkLayer(v, f), f.Close())
			}
		}
		if err != nil {
			return fmt.Errorf("copy volume %q: a layer of its writer %q: %w", v.Name, v.Writer.SandboxID, err)
		}
	}
	return nil
}

// CopyFrom is like Copy, with the content that a volume has in a snapshot. The last parameter has
// the snapshot's files of the volume.
func (s *Store) CopyFrom(d Disk, from *snapshot.Volume, files []*os.File) error {
	r := &record.Volume{ID: from.ID, Name: from.Name, Created: time.Now().UTC(), SizeBytes: from.SizeBytes,
		Layers: layersOf(from)}
	return s.makeCopy(d, r, func(i int, _, to string) error { return hardlink.File(files[i], to) })
}

// layersOf returns the names of the layers of a volume that is in a snapshot.
func layersOf(v *snapshot.Volume) (names []string) {
	for _, f := range v.Files[1:] {
		names = append(names, f.Owner+layerSuffix)
	}
	return names
}

// makeCopy makes the directory of a copy. It calls the function link for each file.
func (s *Store) makeCopy(d Disk, r *record.Volume, link func(i int, name, to string) error) (err error) {
	if err := os.Mkdir(d.Copy, 0o700); err != nil {
		return fmt.Errorf("copy volume %q: %w", d.Name, err)
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(d.Copy) // report the first error
			err = fmt.Errorf("copy volume %q: %w", d.Name, err)
		}
	}()
	for i, name := range append([]string{baseFile}, r.Layers...) {
		if err := link(i, name, filepath.Join(d.Copy, name)); err != nil {
			return err
		}
	}
	r.Owner = d.Sandbox
	p, err := record.EncodeVolume(r)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(d.Copy, recordFile), p, 0o600)
}

// OpenCopy opens a copy for its sandbox's VM, with a new top.
func (s *Store) OpenCopy(ctx context.Context, d Disk) (*Files, error) {
	v, _, err := s.hold(ctx, d)
	if err != nil {
		return nil, err
	}
	f, err := s.open(v, d.Sandbox)
	if err != nil {
		return nil, fmt.Errorf("copy of volume %q: %w", d.Name, err)
	}
	return f, nil
}

// IDOf returns the ID of a disk's volume. For a copy, this is the volume that was copied.
func (s *Store) IDOf(ctx context.Context, d Disk) (string, error) {
	v, unlock, err := s.hold(ctx, d)
	if err != nil {
		return "", err
	}
	defer unlock()
	return v.ID, nil
}

// BeginSwap makes a new top for a disk, and opens the files of the disk for a VM that will switch
// to the new top. The last file in f.Lower is the present top, open for reading. Until EndSwap
// records which top the VM uses, the VM may write to either top.
func (s *Store) BeginSwap(ctx context.Context, d Disk) (f *Files, top string, err error) {
	v, unlock, err := s.hold(ctx, d)
	if err != nil {
		return nil, "", err
	}
	defer unlock()
	if f, top, err = s.beginSwap(v); err != nil {
		return nil, "", fmt.Errorf("volume %q: %w", d.Name, err)
	}
	return f, top, nil
}

func (s *Store) beginSwap(v *volume) (f *Files, top string, err error) {
	if v.Writer == nil || v.Writer.Top == "" {
		return nil, "", errors.New("no VM writes to it")
	}
	if unused := v.Writer.Next; unused != "" { // a daemon was killed before the VM received this top
		if err := s.save(v, func(r *record.Volume) { r.Writer.Next = "" }); err != nil {
			return nil, "", err
		}
		s.drop(v, unused)
	}
	if f, err = s.openLower(v, append(slices.Clone(v.Layers), v.Writer.Top)); err != nil {
		return nil, "", err
	}
	if f.Top, top, err = s.newTop(v); err == nil {
		if err = s.save(v, func(r *record.Volume) { r.Writer.Next = top }); err != nil {
			s.drop(v, top)
		}
	}
	if err != nil {
		f.Close()
		return nil, "", err
	}
	return f, top, nil
}

// EndSwap records whether the VM of a disk writes to the top that BeginSwap has made. If so, the
// former top is a layer from now on. Further calls with the same top do nothing.
func (s *Store) EndSwap(ctx context.Context, d Disk, top string, swapped bool) error {
	v, unlock, err := s.hold(ctx, d)
	if err != nil {
		return err
	}
	defer unlock()
	w := v.Writer
	switch {
	case w != nil && w.Next == top:
	case w == nil || swapped && w.Top != top:
		return fmt.Errorf("volume %q: its record does not name the top %q", d.Name, top)
	default:
		return nil // an earlier call has done it
	}
	err = s.save(v, func(r *record.Volume) {
		if swapped {
			gone := func(name string) bool { return !slices.Contains(r.Layers, name) } // a merge has removed it
			r.Writer.Own = append(slices.DeleteFunc(slices.Clone(r.Writer.Own), gone), r.Writer.Top)
			r.Layers, r.Writer.Top = append(r.Layers, r.Writer.Top), r.Writer.Next
		}
		r.Writer.Next = ""
	})
	if err != nil {
		return fmt.Errorf("volume %q: %w", d.Name, err)
	}
	s.drop(v, top) // does nothing if the VM writes to it
	return nil
}

// Content returns the immutable content of a disk: all data except the data written since the
// sandbox's latest branch. The caller sets the name and the path, and must close the files.
func (s *Store) Content(ctx context.Context, d Disk) (c snapshot.Volume, files []*os.File, err error) {
	v, unlock, err := s.hold(ctx, d)
	if err != nil {
		return c, nil, err
	}
	defer unlock()
	f, err := s.openLower(v, v.Layers)
	if err != nil {
		return c, nil, fmt.Errorf("volume %q: %w", d.Name, err)
	}
	c.ID, c.SizeBytes = v.ID, v.SizeBytes
	owners := []string{strings.TrimPrefix(v.ID, snapshot.VolumeID)}
	for _, name := range v.Layers {
		owners = append(owners, strings.TrimSuffix(name, layerSuffix))
	}
	for i, file := range f.Lower {
		info, err := file.Stat()
		if err == nil && i > 0 {
			err = checkLayer(v, file) // a VM that its guest controls may have damaged it
		}
		if err != nil {
			f.Close()
			return c, nil, fmt.Errorf("volume %q: %w", d.Name, err)
		}
		c.Files = append(c.Files, snapshot.File{Owner: owners[i], Bytes: uint64(info.Size())})
	}
	return c, f.Lower, nil
}

// Back is a disk that returns to its content in a snapshot. GoBack begins the return, and Finish
// ends it.
type Back struct {
	Files  *Files
	store  *Store
	disk   Disk
	layers []string
	top    string
	old    []string // names of the disk's files before Commit
	done   bool     // whether the record may name the new files
}

// GoBack prepares the return of a disk to its content in a snapshot. The last parameter has the
// snapshot's files of the volume. Until Commit, the disk is unchanged.
func (s *Store) GoBack(ctx context.Context, d Disk, to *snapshot.Volume, files []*os.File) (b *Back, err error) {
	v, unlock, err := s.hold(ctx, d)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if v.ID != to.ID || v.SizeBytes != to.SizeBytes {
		return nil, fmt.Errorf("volume %q: it is not the volume %s of %d bytes of the snapshot", d.Name, to.ID, to.SizeBytes)
	}
	b = &Back{store: s, disk: d, layers: layersOf(to)}
	for i, name := range b.layers {
		if err := hardlink.File(files[i+1], filepath.Join(v.dir, name)); err != nil {
			b.drop(v)
			return nil, fmt.Errorf("volume %q: %w", d.Name, err)
		}
	}
	if b.Files, err = s.openLower(v, b.layers); err == nil && !v.private {
		err = s.Sync(b.Files.Lower)
	}
	if err == nil {
		b.Files.Top, b.top, err = s.newTop(v) // also makes the links durable
	}
	if err != nil {
		if b.Files != nil {
			b.Files.Close()
		}
		b.drop(v)
		return nil, fmt.Errorf("volume %q: %w", d.Name, err)
	}
	return b, nil
}

// drop removes the new files that the record of v does not name.
func (b *Back) drop(v *volume) {
	names := b.layers
	if b.top != "" {
		names = append(slices.Clone(names), b.top)
	}
	b.store.drop(v, names...)
}

// Commit changes the disk. The caller then restores the snapshot, and calls Finish.
func (b *Back) Commit(ctx context.Context) error {
	v, unlock, err := b.store.hold(ctx, b.disk)
	if err != nil {
		return err
	}
	defer unlock()
	if err := b.linkAgain(v); err != nil {
		return fmt.Errorf("volume %q: %w", b.disk.Name, err)
	}
	b.old, b.done = v.Volume.Files(), true
	err = b.store.save(v, func(r *record.Volume) {
		r.Layers, r.Writer = b.layers, &record.VolumeWriter{SandboxID: b.disk.Sandbox, Top: b.top}
	})
	if err != nil {
		b.drop(v)
		return fmt.Errorf("volume %q: %w", b.disk.Name, err)
	}
	return nil
}

// linkAgain links the layers that were removed since GoBack. If a merge began before the sandbox
// became the writer, it may have replaced layers that the volume had at the time of GoBack.
func (b *Back) linkAgain(v *volume) error {
	missing := false
	for i, name := range b.layers {
		path := filepath.Join(v.dir, name)
		if _, err := os.Lstat(path); err == nil {
			continue
		}
		if err := hardlink.File(b.Files.Lower[i+1], path); err != nil {
			return err
		}
		missing = true
	}
	if missing && !v.private {
		return atomicfile.SyncDir(v.dir)
	}
	return nil
}

// Finish removes files that the disk no longer needs: the old files if Commit was called, or the
// new files if it was not called. Files that the VM still has open for writing stay until the
// daemon's next start.
func (b *Back) Finish(ctx context.Context) {
	b.Files.Close()
	v, unlock, err := b.store.hold(ctx, b.disk)
	if err != nil {
		return // the volume has been released, and the next start removes what stays
	}
	defer unlock()
	if b.drop(v); b.done {
		b.store.drop(v, b.old...)
	}
}

// Suspend turns the data that a sandbox has written into a part of the volume. The sandbox stays
// the volume's writer. Its VM must have exited. The disk must not be a copy.
func (s *Store) Suspend(ctx context.Context, d Disk) error {
	v, unlock, err := s.lockFor(ctx, d.Name, d.Sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	return s.seal(ctx, v, &record.VolumeWriter{SandboxID: d.Sandbox})
}
