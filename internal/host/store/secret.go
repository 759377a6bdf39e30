package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/crypt"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/fileid"
	"github.com/forkd/forkd/internal/host/hardlink"
	"github.com/forkd/forkd/internal/host/vault"
	"github.com/forkd/forkd/internal/host/writers"
)

// A snapshot can be encrypted while it is made, see Staging.Encrypt. In this case, its files are
// written to the RAM file system, and Publish writes their encrypted forms to the disk. Such a
// snapshot is never hot: it is on disk before it becomes visible, and the files in RAM are removed.

// Encrypt makes a key for a snapshot that has memory and no volumes. From then on, Create and Path
// name files in RAM, and Publish encrypts these files and the disk layers that it is given. The
// given lease belongs to the snapshot whose layers the new snapshot inherits. It may be nil. These
// layers stay in the form that they have in that snapshot, encrypted or not. Encrypt must be called
// before the first file is made. If the snapshot cannot be encrypted, the error is an
// *EncryptedError or a *vault.KeyError.
func (g *Staging) Encrypt(ctx context.Context, from *Lease, diskOnly, volumes bool) error {
	s := g.store
	if err := s.CanEncrypt(g.tag, diskOnly, volumes); err != nil {
		return err
	}
	if from != nil {
		if err := s.WaitFlushed(ctx, from.Manifest().Tag); err != nil { // Publish links its files
			return err
		}
		s.mu.Lock()
		g.keys = slices.Clone(s.byID[from.Manifest().ID].keys) // the lease keeps the entry
		s.mu.Unlock()
	}
	seal, err := s.vault.Seal(ctx)
	if err != nil {
		return err
	}
	g.secret, g.keys, g.first = seal, append(g.keys, seal.KeyID), true
	p, err := record.EncodeEncryption(&record.Encryption{SnapshotID: g.id, Keys: g.keys})
	if err != nil {
		return err
	}
	// If the daemon is killed, the next daemon finds the key by this file.
	return s.Essential(func() error {
		return atomicfile.WriteDurable(filepath.Join(g.dir, EncryptionFile), p, 0o600)
	})
}

// CanEncrypt returns an error if it is already known that Encrypt would refuse a new snapshot with
// the given tag. It asks no other system. The error is an *EncryptedError or a *vault.KeyError.
func (s *Store) CanEncrypt(tag string, diskOnly, volumes bool) error {
	return cmp.Or(failure.CanEncrypt(tag, diskOnly, volumes), s.vault.CanSeal())
}

// place puts a layer of an encrypted snapshot into the snapshot's directory. If the snapshot with
// the given ID has the layer, place makes a link to that layer. Otherwise it makes an encrypted
// copy of f. If f is nil, the snapshot with the given ID must have the layer.
func (g *Staging) place(kind, from, owner string, f *os.File) error {
	name := snapshot.LayerFile(kind, g.id, owner)
	linked, err := g.linkFrom(kind, from, owner, filepath.Join(g.dir, name))
	switch {
	case err != nil || linked:
		return err
	case f == nil:
		return fmt.Errorf("%s: %w", name, errMissing)
	}
	return g.encrypt(name, f)
}

// linkFrom makes a link to a layer of the snapshot with the given ID. The layer may be encrypted or
// not. linkFrom reports whether that snapshot has the layer.
func (g *Staging) linkFrom(kind, from, owner, to string) (bool, error) {
	s := g.store
	s.moves.RLock()
	defer s.moves.RUnlock()
	s.mu.Lock()
	e := s.byID[from]
	if e == nil || owner == g.id || !slices.ContainsFunc(append(slices.Clone(e.manifest.Memory),
		e.manifest.DiskLayers()...), func(l snapshot.File) bool { return l.Owner == owner }) {
		s.mu.Unlock()
		return false, nil
	}
	path := filepath.Join(e.dir, snapshot.LayerFile(kind, from, owner))
	s.mu.Unlock()
	err := hardlink.Link(path, to)
	if errors.Is(err, fs.ErrNotExist) {
		err = hardlink.Link(path+crypt.Suffix, to+crypt.Suffix)
	}
	if errors.Is(err, fs.ErrNotExist) { // that snapshot has a layer of another kind with this owner
		return false, nil
	}
	return err == nil, err
}

// encrypt writes the encrypted form of f to the snapshot's directory, with the given name.
func (g *Staging) encrypt(name string, f *os.File) error {
	room, err := g.store.Room()
	if err != nil {
		return err
	}
	return g.secret.Encrypt(filepath.Join(g.dir, name), f, snapshot.PortableName(name, g.id), room)
}

// encryptMemory writes the encrypted forms of the files in RAM to the disk, and removes the files in RAM.
func (g *Staging) encryptMemory() error {
	for _, name := range []string{snapshot.StateFile, snapshot.MemoryMapFile, snapshot.MemoryLayerFile} {
		f, err := os.Open(g.Path(name))
		if err != nil {
			return err
		}
		if err := errors.Join(g.encrypt(name, f), f.Close()); err != nil {
			return err
		}
	}
	return g.store.left.Remove(g.store.layerDir(g.id), writers.Patience)
}

// CheckRoom is called before the snapshot gets another file, which will have the data of the given
// files. If the snapshot will be encrypted, and RAM has too little room for this file, the error is
// a *vault.RoomError.
func (g *Staging) CheckRoom(files []*os.File) error {
	need := fileid.BlocksOf(files...)
	if g.secret == nil || g.store.hasRoom(need) {
		return nil
	}
	return &vault.RoomError{Dir: g.store.ram, Bytes: need}
}
