package store

import (
	"context"
	"errors"
	"fmt"
	"github.com/forkd/forkd/internal/host/fileid"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/background"
	"github.com/forkd/forkd/internal/host/filedigest"
	"github.com/forkd/forkd/internal/host/sparse"
	"github.com/forkd/forkd/internal/private"
)

// Snapshots name their base image by its digest. Only the store knows which file has that digest. A
// manifest must not name a path: if it could, the author of a manifest could make any file of this
// host the guest's disk. For each base there are these files:
//
//	<root>/bases/<hex>.json   a record.Base
//	<root>/bases/<hex>        another link to the image's file, if it is on the same file system: the image may then
//	                          be moved, or removed from its cache

// maxBaseRecord is the maximum length of a record in bytes. A path may have 4096 bytes, and JSON
// uses up to six bytes for a byte of a path.
const maxBaseRecord = 32 << 10

// basing adds one file, such as a base image or a kernel, to the store in the background.
type basing struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the addition has ended; base and err may be read only then
	base   snapshot.Base
	err    error
}

func (s *Store) bases() string                 { return filepath.Join(s.root, "bases") }
func (s *Store) baseLink(digest string) string { return filepath.Join(s.bases(), hexOf(digest)) }
func (s *Store) baseRecord(digest string) string {
	return filepath.Join(s.bases(), hexOf(digest)+recordSuffix)
}

const recordSuffix = ".json"

// hexOf returns the hexadecimal part of a valid digest. This part is used as a file name.
func hexOf(digest string) string { return digest[strings.LastIndexByte(digest, ':')+1:] }

// UseBase makes an open regular file the base of the snapshot's disk. If the store does not know
// the file's digest yet, the digest is computed in the background while the parent boots. Publish
// waits for the computation, and Discard cancels it. UseBase may be called only once.
func (g *Staging) UseBase(image *os.File) (err error) {
	g.basing, err = g.addInBackground("base image", image, false)
	return err
}

// UseBoot is like UseBase, for the kernel and the initramfs from which the parent boots. The store
// keeps both files. If it cannot link a file, it copies the file.
func (g *Staging) UseBoot(kernel, initrd *os.File) (err error) {
	if g.kernel, err = g.addInBackground("kernel", kernel, true); err != nil {
		return err
	}
	g.initrd, err = g.addInBackground("initramfs", initrd, true)
	return err
}

// addInBackground adds a file to the store. The snapshot names the file by its digest. If the file
// cannot be linked, and keep is true, the file is copied.
func (g *Staging) addInBackground(what string, file *os.File, keep bool) (*basing, error) {
	// Open the file again, because computing the digest moves the offset, and duplicates of a
	// descriptor share an offset.
	f, err := os.Open(procPath(file))
	if err != nil {
		return nil, fmt.Errorf("use %s %s: %w", what, file.Name(), err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b := &basing{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(b.done)
		defer f.Close()
		background.AtLowestPriority()
		if b.base, b.err = g.store.addBase(ctx, g, f, filepath.Clean(file.Name()), keep); b.err != nil {
			b.err = fmt.Errorf("use %s %s: %w", what, file.Name(), b.err)
		} else if !keep { // the file is the disk's base, not a boot file
			g.setBase(b.base)
		}
	}()
	return b, nil
}

// wait waits until the file is in the store, and returns the Base with which the manifest names the
// file.
func (b *basing) wait() (snapshot.Base, error) {
	<-b.done
	return b.base, b.err
}

// boot returns the files given to UseBoot, or nil.
func (g *Staging) boot() (*snapshot.Boot, error) {
	if g.kernel == nil || g.initrd == nil {
		return nil, nil
	}
	kernel, err := g.kernel.wait()
	if err != nil {
		return nil, err
	}
	initrd, err := g.initrd.wait()
	return &snapshot.Boot{Kernel: kernel, Initrd: initrd}, err
}

// useBases adds the files of UseBase and UseBoot to the manifest m.
func (g *Staging) useBases(m *snapshot.Manifest) (err error) {
	if g.basing != nil && m.Disk != nil {
		if m.Disk.Base, err = g.basing.wait(); err != nil {
			return err
		}
	}
	boot, err := g.boot()
	if boot != nil {
		m.Boot = boot
	}
	return err
}

// stopBasing cancels additions that are in progress. It reports whether any were in progress.
func (g *Staging) stopBasing() (any bool) {
	for _, b := range []*basing{g.basing, g.kernel, g.initrd} {
		if b != nil {
			b.cancel()
			<-b.done
			any = true
		}
	}
	return any
}

// procPath returns a path to an open file.
func procPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// addBase computes the digest of a file and records where the file is. The store then keeps the
// record as long as g or a snapshot needs it. If addBase cannot link the file, and keep is true,
// addBase copies the file.
func (s *Store) addBase(ctx context.Context, g *Staging, f *os.File, path string, keep bool) (snapshot.Base, error) {
	id, err := fileid.Of(f)
	if err != nil {
		return snapshot.Base{}, err
	}
	rec := record.Base{Digest: s.knownDigest(id), Path: path, File: record.File(id)}
	if rec.Digest == "" {
		if rec.Digest, err = filedigest.Of(ctx, f); err != nil {
			return snapshot.Base{}, err
		}
		if now, err := fileid.Of(f); err != nil || now != id {
			return snapshot.Base{}, errors.Join(errors.New("it was changed while it was read; build the image again"), err)
		}
	}
	base := snapshot.Base{Digest: rec.Digest, Bytes: id.Bytes}
	s.basesMu.Lock()
	defer s.basesMu.Unlock()
	s.mu.Lock()
	g.bases = append(g.bases, base.Digest)
	s.mu.Unlock()
	if have, err := s.openBase(base); err == nil {
		_, linked := os.Lstat(s.baseLink(base.Digest))
		if have.Close(); linked == nil {
			return base, nil
		}
	}
	linked, err := s.linkBase(f, base.Digest)
	if err != nil {
		return base, err
	}
	if !linked && !keep && fileid.OfPath(path) != id { // the store could not find the file again
		return base, errors.New("it was removed or replaced while it was read; build the image again")
	}
	if !linked && keep {
		rec.Path = s.baseLink(base.Digest)
		copied, err := copyBase(ctx, rec.Path, f, rec.Digest)
		if err != nil {
			return base, err
		}
		rec.File = record.File(copied)
	}
	p, err := record.EncodeBase(&rec)
	if err != nil {
		return base, err
	}
	return base, s.Essential(func() error { return atomicfile.WriteDurable(s.baseRecord(base.Digest), p, 0o600) })
}

// linkBase makes a link in the store to an image, and reports whether this was possible. A link is
// not possible if the image is on another file system, or if the store may not link the image. In
// these cases the store needs the image at its path.
func (s *Store) linkBase(f *os.File, digest string) (linked bool, err error) {
	name := s.baseLink(digest)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	err = unix.Linkat(unix.AT_FDCWD, procPath(f), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
	switch err {
	case nil:
		return true, nil
	case unix.EXDEV, unix.EPERM, unix.EACCES, unix.EMLINK, unix.ENOENT: // ENOENT: the file has no name any more
		return false, nil
	}
	return false, fmt.Errorf("link it to %s: %w", name, err)
}

// copyBase copies a file with the given digest into the store and flushes the copy to disk. If the
// copy has another digest, because the file was changed in the meantime, copyBase returns an error.
func copyBase(ctx context.Context, name string, f *os.File, want string) (id fileid.ID, err error) {
	err = atomicfile.Fill(name, func(tmp string) error {
		if err := sparse.Copy(tmp, f); err != nil {
			return err
		}
		copied, err := os.Open(tmp)
		if err != nil {
			return err
		}
		defer copied.Close()
		if err := copied.Sync(); err != nil {
			return err
		}
		if got, err := filedigest.Of(ctx, copied); err != nil || got != want {
			return errors.Join(errors.New("it was changed while it was copied; build the image again"), err)
		}
		id, err = fileid.Of(copied)
		return err
	})
	if err != nil {
		return fileid.ID{}, fmt.Errorf("copy it to %s: %w", name, err)
	}
	return id, nil
}

// knownDigest returns the digest of a file that is already a base and has not changed since it was
// added. For any other file it returns "".
func (s *Store) knownDigest(id fileid.ID) string {
	entries, err := os.ReadDir(s.bases())
	if err != nil {
		return ""
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), recordSuffix)
		if !ok {
			continue
		}
		if rec, err := s.readBase(name); err == nil && fileid.ID(rec.File) == id {
			return rec.Digest
		}
	}
	return ""
}

// readBase reads the record of a base.
func (s *Store) readBase(digest string) (*record.Base, error) {
	path := s.baseRecord(digest)
	p, err := s.readBounded(path, maxBaseRecord)
	if err != nil {
		return nil, err
	}
	rec, err := record.ParseBase(path, p)
	if err != nil {
		return nil, err
	}
	if hexOf(rec.Digest) != hexOf(digest) {
		return nil, fmt.Errorf("record is that of %s", rec.Digest)
	}
	return rec, nil
}

// openBase opens a base of a snapshot. It checks that the file's length and change time have not
// changed since the digest was computed. It does not compute the digest again, because that would
// delay a fork.
func (s *Store) openBase(base snapshot.Base) (*os.File, error) {
	rec, err := s.readBase(base.Digest)
	if err != nil {
		return nil, fmt.Errorf("unknown to this store: build its image on this host and bake any snapshot from it (%w)", err)
	}
	f, err := s.open(s.baseLink(base.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		f, err = private.OpenPath(rec.Path)
	}
	if err != nil {
		return nil, fmt.Errorf("it was %s: put it back there, or build its image again and bake any snapshot from it: %w",
			rec.Path, err)
	}
	id, err := fileid.Of(f)
	if err == nil && (id.Bytes != base.Bytes || id.Bytes != rec.File.Bytes || id.ModNanos != rec.File.ModNanos) {
		err = fmt.Errorf("%s was changed after it was digested: build its image again and bake any snapshot from it",
			rec.Path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// dropBases drops the bases that no snapshot needs. A snapshot that is being made also needs its
// base. If a manifest cannot be read, its base is unknown, so all bases are kept.
func (s *Store) dropBases() error {
	s.basesMu.Lock()
	defer s.basesMu.Unlock()
	used := make(map[string]bool)
	s.mu.Lock()
	for _, g := range s.reserved {
		for _, digest := range g.bases {
			used[hexOf(digest)] = true
		}
	}
	unknown := len(s.damaged) > 0
	for digest := range s.based {
		used[digest] = true
	}
	s.mu.Unlock()
	if unknown {
		return nil
	}
	return s.emptyDir(s.bases(), func(name string) bool { return used[strings.TrimSuffix(name, recordSuffix)] })
}
