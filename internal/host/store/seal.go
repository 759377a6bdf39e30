package store

import (
	"context"
	"fmt"
	"github.com/forkd/forkd/internal/host/fileid"
	"os"
	"path/filepath"
	"slices"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/background"
	"github.com/forkd/forkd/internal/host/filedigest"
)

// digested is a file of a snapshot, with a pointer to the file's digest in the manifest.
type digested struct {
	name string
	open func() (*os.File, error)
	want *string
}

func (d *digested) digest(ctx context.Context) (string, error) {
	f, err := d.open()
	if err != nil {
		return "", err
	}
	defer f.Close()
	return filedigest.Of(ctx, f)
}

// files returns all files that m names, with pointers to their digests in m.
func (s *Store) files(m *snapshot.Manifest) []digested {
	inDir := func(name string, want *string) digested {
		return digested{name, func() (*os.File, error) { return s.open(s.file(m.Tag, name)) }, want}
	}
	var list []digested
	if !m.DiskOnly() {
		list = append(list, inDir(snapshot.StateFile, &m.State.Digest), inDir(snapshot.MemoryMapFile, &m.Map.Digest))
	} else { // boot files, which a disk-only snapshot needs
		for what, base := range map[string]*snapshot.Base{"kernel ": &m.Boot.Kernel, "initramfs ": &m.Boot.Initrd} {
			open := func() (*os.File, error) { return s.openBase(*base) }
			list = append(list, digested{what + base.Digest, open, &base.Digest})
		}
	}
	add := func(base string, layers []snapshot.File) {
		for i := range layers {
			list = append(list, inDir(snapshot.LayerFile(base, m.ID, layers[i].Owner), &layers[i].Digest))
		}
	}
	add(snapshot.MemoryLayerFile, m.Memory)
	if d := m.Disk; d != nil {
		base := digested{"base image " + d.Base.Digest, func() (*os.File, error) {
			return s.openBase(d.Base)
		}, &d.Base.Digest}
		list = append(list, base)
		add(snapshot.DiskLayerFile, d.Layers)
	}
	for _, v := range m.Volumes {
		add(snapshot.VolumeFile, v.Files)
	}
	return list
}

// seal computes the missing digests of one snapshot and writes them to its manifest.
func (s *Store) seal(ctx context.Context, tag string) error {
	m, err := s.readManifest(s.file(tag, snapshot.ManifestFile))
	if err != nil {
		return err
	}
	s.inheritDigests(m)
	for _, f := range s.files(m) {
		if *f.want == "" {
			if *f.want, err = f.digest(ctx); err != nil {
				return err
			}
		}
	}
	p, err := m.Encode()
	if err != nil {
		return err
	}
	s.mu.Lock()
	e := s.byTag[tag]
	s.mu.Unlock()
	if e == nil {
		return nil // the snapshot has been deleted
	}
	e.flushMu.Lock() // a deletion takes this lock, too
	defer e.flushMu.Unlock()
	s.mu.Lock()
	same := s.byTag[tag] == e && e.Listed() && e.id() == m.ID
	s.mu.Unlock()
	if !same {
		return nil
	}
	path := s.file(tag, snapshot.ManifestFile)
	if err := s.Essential(func() error { return atomicfile.WriteDurable(path, p, 0o600) }); err != nil {
		return err
	}
	s.mu.Lock()
	s.setManifestLocked(e, m)
	s.mu.Unlock()
	return nil
}

// inheritDigests copies digests from other snapshots that have links to the same layers.
func (s *Store) inheritDigests(m *snapshot.Manifest) {
	s.inherit(m, snapshot.MemoryLayerFile, m.Memory, s.memory,
		func(o *snapshot.Manifest) []snapshot.File { return o.Memory })
	s.inherit(m, snapshot.DiskLayerFile, m.DiskLayers(), s.disk, (*snapshot.Manifest).DiskLayers)
	for _, v := range m.Volumes {
		s.inherit(m, snapshot.VolumeFile, v.Files, s.volumes, (*snapshot.Manifest).VolumeFiles)
	}
}

// maxInherit bounds the number of snapshots in which inherit looks for the digest of one layer. If
// inherit does not find the digest, seal computes it.
const maxInherit = 16

// inherit does the work of inheritDigests for layers of one kind. The given map has, for each owner
// of a layer, the snapshots that have the layer. The given function returns the layers of that kind
// in a manifest.
func (s *Store) inherit(m *snapshot.Manifest, kind string, layers []snapshot.File,
	having map[string][]*entry, of func(*snapshot.Manifest) []snapshot.File) {
	type known struct{ path, digest string }
	for i := range layers {
		l := &layers[i]
		if l.Digest != "" {
			continue
		}
		var candidates []known
		s.mu.Lock()
		for _, e := range having[l.Owner][:min(len(having[l.Owner]), maxInherit)] {
			of := of(e.manifest)
			at := slices.IndexFunc(of, func(o snapshot.File) bool { return o.Owner == l.Owner })
			if e.manifest.ID != m.ID && of[at].Digest != "" {
				path := filepath.Join(e.dir, snapshot.LayerFile(kind, e.manifest.ID, l.Owner))
				candidates = append(candidates, known{path, of[at].Digest})
			}
		}
		s.mu.Unlock()
		id := fileid.OfAny(s.file(m.Tag, snapshot.LayerFile(kind, m.ID, l.Owner)))
		for _, k := range candidates {
			if id != (fileid.ID{}) && fileid.OfAny(k.path) == id {
				l.Digest = k.digest
				break
			}
		}
	}
}

// Verify reads every file of the snapshot, including inherited layers, and compares the digests. If
// a file differs, the error is a *DamagedError that names the first such file. Verify first
// computes and stores missing digests. Like the sealer, it runs at the lowest priority.
func (s *Store) Verify(ctx context.Context, tag string) error {
	done := make(chan error, 1)
	go func() {
		background.AtLowestPriority()
		done <- s.verify(ctx, tag)
	}()
	return <-done
}

func (s *Store) verify(ctx context.Context, tag string) error {
	lease, err := s.AcquireDisk(tag)
	if err != nil {
		return err
	}
	defer lease.Release()
	if err := s.WaitFlushed(ctx, tag); err != nil {
		return err
	}
	if !s.manifestOf(tag).Sealed() {
		if err := s.seal(ctx, tag); err != nil {
			return fmt.Errorf("verify snapshot %q: %w", tag, err)
		}
	}
	m, err := s.readManifest(s.file(tag, snapshot.ManifestFile))
	if err != nil {
		return &DamagedError{Tag: tag, File: snapshot.ManifestFile, Err: err}
	}
	for _, f := range s.files(m) {
		got, err := f.digest(ctx)
		if err == nil && got != *f.want {
			err = fmt.Errorf("digest is %.20s…, the manifest says %.20s…: the content was changed", got, *f.want)
		}
		if err != nil {
			return &DamagedError{Tag: tag, File: f.name, Err: err}
		}
	}
	return nil
}

// manifestOf returns the manifest of a leased snapshot.
func (s *Store) manifestOf(tag string) *snapshot.Manifest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byTag[tag].manifest
}
