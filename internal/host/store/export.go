package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/failure"
)

// Exported is a leased snapshot on disk, with all digests in its manifest. Close ends the lease.
type Exported struct {
	Manifest *snapshot.Manifest // must not be changed
	Files    []*os.File         // one for each of artifact.Parts(Manifest); no other goroutine uses them
	lease    *Lease
}

// Export opens the files of the snapshot with the given tag. It waits until the snapshot is on disk, and
// computes missing digests. It does not compare the files with their digests; see artifact.Encoder.
func (s *Store) Export(ctx context.Context, tag string) (_ *Exported, err error) {
	x := new(Exported)
	if x.lease, err = s.inClear(tag, s.AcquireDisk); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			x.Close()
		}
	}()
	if err := s.WaitFlushed(ctx, tag); err != nil {
		return nil, err
	}
	if !s.manifestOf(tag).Sealed() {
		if err := s.seal(ctx, tag); err != nil {
			return nil, fmt.Errorf("export snapshot %q: %w", tag, err)
		}
	}
	m := s.manifestOf(tag)
	if len(m.Volumes) > 0 {
		return nil, &failure.VolumesError{Op: "export", Tag: tag}
	}
	x.Manifest = m
	for _, open := range s.openers(m) {
		f, err := open.open()
		if err != nil {
			return nil, &DamagedError{Tag: tag, File: open.name, Err: err}
		}
		x.Files = append(x.Files, f)
	}
	return x, nil
}

// openers returns functions that open the files of a snapshot on disk, in the order of artifact.Parts.
func (s *Store) openers(m *snapshot.Manifest) (list []digested) {
	file := func(name string, bytes uint64) {
		list = append(list, digested{name: name, open: func() (*os.File, error) {
			return s.openSized(filepath.Join(s.dir(m.Tag), name), bytes)
		}})
	}
	base := func(what string, b snapshot.Base) {
		list = append(list, digested{name: what + " " + b.Digest, open: func() (*os.File, error) { return s.openBase(b) }})
	}
	if !m.DiskOnly() {
		file(snapshot.StateFile, m.State.Bytes)
		file(snapshot.MemoryMapFile, m.Map.Bytes)
	}
	for _, l := range m.Memory {
		file(snapshot.LayerFile(snapshot.MemoryLayerFile, m.ID, l.Owner), l.Bytes)
	}
	if m.Disk != nil {
		for _, l := range m.Disk.Layers {
			file(snapshot.LayerFile(snapshot.DiskLayerFile, m.ID, l.Owner), l.Bytes)
		}
		base("base image", m.Disk.Base)
	}
	if m.Boot != nil {
		base("kernel", m.Boot.Kernel)
		base("initramfs", m.Boot.Initrd)
	}
	return list
}

// Close closes the files and ends the lease.
func (x *Exported) Close() {
	for _, f := range x.Files {
		f.Close()
	}
	x.lease.Release()
}

// Version returns the ID of the snapshot with the given tag. The result alone is true if all layers
// of the snapshot are its own.
func (s *Store) Version(tag string) (id string, alone bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, _, err := s.findLocked(tag)
	switch {
	case err != nil:
		return "", false, err
	case e == nil:
		return "", false, &ExistsError{Tag: tag, InFlight: true}
	case e.damage != nil:
		return "", false, e.damage
	}
	m := e.manifest
	layers := slices.Clone(m.Memory)
	if m.Disk != nil {
		layers = append(layers, m.Disk.Layers...)
	}
	return m.ID, !slices.ContainsFunc(layers, func(l snapshot.File) bool { return l.Owner != m.ID }), nil
}
