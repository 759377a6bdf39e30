package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/crypt"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/phase"
	"github.com/forkd/forkd/internal/host/vault"
)

// An encrypted snapshot has a file NAME.enc (see package crypt) instead of the file NAME, and an
// EncryptionFile. Two kinds of its files are not encrypted: the manifest, and layers that it shares
// with unencrypted snapshots. The other files are decrypted for the first lease, and closed at the
// end of the last lease.

// EncryptionFile is the name of the record of an encrypted snapshot, in its directory.
const EncryptionFile = "encryption.json"

// keysIn returns the keys of the encrypted files in a snapshot's directory. An empty id stands for a
// snapshot whose manifest is lost. If the EncryptionFile is missing or damaged, the keys are those that
// the encrypted files name, so that the deletion of the snapshot destroys them.
func (s *Store) keysIn(dir, id string) ([]string, error) {
	path := filepath.Join(dir, EncryptionFile)
	f, err := s.openAsIs(path)
	if errors.Is(err, fs.ErrNotExist) {
		return vault.KeysOf(dir), nil // without an EncryptionFile, the encrypted files name their keys
	}
	if err != nil {
		return nil, err
	}
	f.Close()
	p, err := s.readBounded(path, 1<<20)
	if err != nil {
		return vault.KeysOf(dir), err
	}
	r, err := record.ParseEncryption(path, p)
	if err == nil && id != "" && r.SnapshotID != id {
		err = fmt.Errorf("%s is that of snapshot %.40q", path, r.SnapshotID)
	}
	if err != nil {
		return vault.KeysOf(dir), err
	}
	return r.Keys, nil
}

// openEncrypted decrypts the file that replaces the missing file at path. If there is no such
// encrypted file, openEncrypted returns the given error.
func (s *Store) openEncrypted(path string, missing error) (*os.File, error) {
	enc, err := s.openAsIs(path + crypt.Suffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing
	}
	if err != nil {
		return nil, err
	}
	defer enc.Close()
	dir, file := filepath.Split(path)
	p, err := s.readManifest(filepath.Join(dir, snapshot.ManifestFile))
	if err != nil {
		return nil, err
	}
	return s.vault.Decrypt(context.Background(), enc, snapshot.PortableName(file, p.ID), s.hasRoom)
}

// isDecrypted reports whether f comes from openEncrypted. Only such files have no names.
func isDecrypted(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Nlink == 0
}

// AcquireInClear is like Acquire, for callers that write unencrypted data of the snapshot to the
// disk. If the snapshot is encrypted, the error is an *EncryptedError.
func (s *Store) AcquireInClear(tag string) (*Lease, error) { return s.inClear(tag, s.Acquire) }

func (s *Store) inClear(tag string, acquire func(tag string) (*Lease, error)) (*Lease, error) {
	s.mu.Lock()
	e := s.byTag[tag]
	secret := e != nil && len(e.keys) > 0
	s.mu.Unlock()
	if secret { // checked before the files are decrypted
		return nil, writesPlain(tag)
	}
	l, err := acquire(tag)
	if err == nil && l.secret { // the snapshot was encrypted after the check above
		l.Release()
		return nil, writesPlain(tag)
	}
	return l, err
}

// AcquireRunning is like AcquireVersion, for a VM of an earlier daemon. Such a VM has its files open.
// So if the snapshot is encrypted, the lease has a manifest and no files: the key is not needed, and
// RAM does not hold the decrypted files twice.
func (s *Store) AcquireRunning(tag, id string) (*Lease, error) {
	s.mu.Lock()
	e := s.byTag[tag]
	if e == nil || !e.Listed() || e.id() != id || len(e.keys) == 0 {
		s.mu.Unlock()
		return s.AcquireVersion(tag, id)
	}
	e.refs.lease++
	hot := &hotFiles{manifest: e.manifest, secret: true}
	s.mu.Unlock()
	return &Lease{hotFiles: hot, release: s.releaser(e, &e.refs.lease)}, nil
}

// Member is a snapshot of a family.
type Member struct {
	Tag, ID, Dir string
	Manifest     *snapshot.Manifest // must not be changed
	Keys         []string           // keys of its encrypted files; empty if it is not encrypted
}

// Family returns the snapshots that have data of the snapshot with the given tag. The snapshot
// itself is the first. The other snapshots build on it or have a layer of it. Family waits until
// all of them are on disk. If one of them is in use, the error is an *InUseError.
func (s *Store) Family(ctx context.Context, tag string) (family []Member, err error) {
	if err := s.WaitFlushed(ctx, tag); err != nil {
		return nil, err
	}
	s.mu.Lock()
	entries, err := s.idleFamilyLocked(tag)
	for _, e := range entries {
		family = append(family, Member{e.tag, e.id(), e.dir, e.manifest, e.keys})
	}
	s.mu.Unlock()
	for _, m := range family {
		if err == nil {
			err = s.WaitFlushed(ctx, m.Tag)
		}
		if err == nil && !m.Manifest.Sealed() {
			err = s.seal(ctx, m.Tag)
		}
	}
	return family, err
}

// idleFamilyLocked returns a family. If a member is in use, it returns an error.
func (s *Store) idleFamilyLocked(tag string) ([]*entry, error) {
	e := s.byTag[tag]
	if e == nil || !e.Listed() {
		return nil, &NotFoundError{Tag: tag}
	}
	family, seen := []*entry{e}, map[*entry]bool{e: true}
	for i := 0; i < len(family); i++ { // the loop appends to family
		e := family[i]
		if e.damage != nil {
			return nil, e.damage
		}
		if e.Phase == phase.Arriving {
			return nil, &ArrivingError{Tag: e.tag}
		}
		if n := e.refs.using() + e.refs.pin; n > 0 || !e.Listed() {
			return nil, &InUseError{Tag: e.tag, Leases: max(n, 1)}
		}
		for _, more := range [][]*entry{s.children[e.id()], s.memory[e.id()], s.disk[e.id()]} {
			for _, m := range more {
				if !seen[m] {
					seen[m], family = true, append(family, m)
				}
			}
		}
	}
	return family, nil
}

// rewritePrefix is the prefix of the name of a directory in which Rewrite works.
const rewritePrefix = "rewrite-"

// Rewrite replaces the files of a snapshot. It calls the function write, which writes all files of
// the snapshot to an empty directory. Then Rewrite exchanges this directory and the snapshot's
// directory in one step. If the daemon is killed, either all old files or all new files remain.
// When Rewrite returns nil, the old files are removed, and keys that no snapshot has any more are
// destroyed. If the snapshot is used during the call, the error is an *InUseError, and nothing has
// changed.
func (s *Store) Rewrite(tag, id string, write func(from, to string) error) error {
	unpin, err := s.Pin(tag) // prevents the deletion of the snapshot
	if err != nil {
		return err
	}
	defer unpin()
	s.mu.Lock()
	e := s.byTag[tag]
	s.mu.Unlock()
	if e == nil || e.id() != id {
		return &ReplacedError{Tag: tag}
	}
	// No snapshot has this ID, so the next start removes the directory.
	to := filepath.Join(s.staging(), rewritePrefix+snapshot.NewID())
	defer os.RemoveAll(to)
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	if err := write(e.dir, to); err != nil {
		return err
	}
	if err := errors.Join(atomicfile.SyncDir(to), s.exchange(e, to)); err != nil {
		return err
	}
	for _, l := range e.manifest.Memory {
		s.dropCold(l.Owner) // RAM still has copies of the old files
	}
	if gone := s.gone.Load(); gone != nil {
		(*gone)(e.manifest)
	}
	return os.RemoveAll(to)
}

// exchange exchanges the directory of a snapshot with another directory.
func (s *Store) exchange(e *entry, with string) error {
	e.flushMu.Lock()
	defer e.flushMu.Unlock()
	e.hotMu.Lock() // later leases wait here and open the new files
	defer e.hotMu.Unlock()
	s.moves.Lock()
	defer s.moves.Unlock()
	const own = 1 // the pin of Rewrite
	s.mu.Lock()
	used := e.refs.using() + e.refs.pin - own
	stored := e.Phase == phase.Stored
	s.mu.Unlock()
	if used > 0 || !stored {
		return &InUseError{Tag: e.tag, Leases: max(used, 1)}
	}
	keys, err := s.keysIn(with, e.id())
	if err != nil {
		return err
	}
	e.closeHot()
	old := e.keys // only this function changes them
	if err := unix.Renameat2(unix.AT_FDCWD, with, unix.AT_FDCWD, e.dir, unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("exchange %s and %s: %w", with, e.dir, err)
	}
	s.mu.Lock()
	s.dropLocked(e)
	e.keys = keys
	s.addLocked(e)
	unused := s.unusedLocked(old)
	s.mu.Unlock()
	if err := errors.Join(atomicfile.SyncDir(s.snapshots()), atomicfile.SyncDir(s.staging())); err != nil {
		return err
	}
	return s.destroy(unused)
}

// Shred destroys the keys of an encrypted snapshot and of all snapshots that have data of it, and then
// deletes these snapshots. If one of them is in use or not encrypted, or if another snapshot has the
// same key, it does nothing.
func (s *Store) Shred(tag string) ([]Deleted, error) {
	family, keys, err := s.condemnKeys(tag)
	if err != nil {
		return nil, err
	}
	if err := s.destroy(keys); err != nil {
		s.mu.Lock()
		for _, e := range family {
			e.UndeleteLocked()
		}
		s.mu.Unlock()
		return nil, err
	}
	slices.Reverse(family) // dependents first
	return s.removeAll(family)
}

// condemnKeys chooses the snapshots that Shred deletes. From then on they cannot be leased.
func (s *Store) condemnKeys(tag string) (family []*entry, keys []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if family, err = s.idleFamilyLocked(tag); err != nil {
		return nil, nil, err
	}
	for _, e := range family {
		if len(e.keys) == 0 {
			return nil, nil, &EncryptedError{Tag: e.tag, Reason: "has data of " + tag +
				" and is in clear: 'forkd encrypt " + tag +
				"', or remove it"}
		}
		keys = append(keys, e.keys...)
	}
	for _, e := range s.byTag {
		has := func(k string) bool { return slices.Contains(keys, k) }
		if !slices.Contains(family, e) && slices.ContainsFunc(e.keys, has) {
			return nil, nil, &EncryptedError{Tag: tag, Reason: "its key is also that of " + e.tag +
				": shred the snapshot that both " +
				"build on, or delete this one ('forkd rmi " + tag + "')"}
		}
	}
	for _, e := range family {
		e.EnterLocked(phase.Deleting)
	}
	slices.Sort(keys)
	return family, slices.Compact(keys), nil
}

// unusedLocked returns the keys that no snapshot has.
func (s *Store) unusedLocked(keys []string) (unused []string) {
	for _, k := range keys {
		used := false
		for _, e := range s.byTag {
			used = used || slices.Contains(e.keys, k)
		}
		if !used {
			unused = append(unused, k)
		}
	}
	return unused
}

// ForgetKey destroys a key, unless a snapshot has it.
func (s *Store) ForgetKey(id string) error {
	s.mu.Lock()
	unused := s.unusedLocked([]string{id})
	s.mu.Unlock()
	return s.destroy(unused)
}

// destroyLeft destroys the keys of directories that a crash during a deletion or an encryption has
// left behind. The store removes these directories when it starts. destroyLeft keeps keys that
// snapshots use.
func (s *Store) destroyLeft(dirs []string) error {
	var keys []string
	for _, dir := range dirs {
		more, _ := s.keysIn(dir, "") // after an error, the keys of this directory are unknown
		keys = append(keys, more...)
	}
	s.mu.Lock()
	unused := s.unusedLocked(keys)
	s.mu.Unlock()
	return s.destroy(unused)
}

func (s *Store) destroy(keys []string) (err error) {
	for _, k := range keys {
		if s.vault != nil {
			err = errors.Join(err, s.vault.Destroy(k))
		}
	}
	return err
}
