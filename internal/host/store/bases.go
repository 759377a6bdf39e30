package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/private"
)

// Snapshots name their base image by its digest. Only the store knows the file with that digest: a
// path in a manifest would let the maker of the manifest choose any file of this host as the
// guest's disk. For every base there are
//
//	<root>/bases/<hex>.json   a record.Base
//	<root>/bases/<hex>        another link to the image's file, if it is on the same file system: the image may then
//	                          be moved, or removed from its cache

// maxBaseRecord bounds a record, in bytes: a path may have 4096 bytes, and JSON escapes a byte with
// up to six.
const maxBaseRecord = 32 << 10

// basing is the addition of a base image to the store.
type basing struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the other fields are valid
	base   snapshot.Base
	err    error
}

func (s *Store) bases() string                 { return filepath.Join(s.root, "bases") }
func (s *Store) baseLink(digest string) string { return filepath.Join(s.bases(), hexOf(digest)) }
func (s *Store) baseRecord(digest string) string {
	return filepath.Join(s.bases(), hexOf(digest)+recordSuffix)
}

const recordSuffix = ".json"

// hexOf returns the hexadecimal part of a valid digest, which is a file name.
func hexOf(digest string) string { return digest[strings.LastIndexByte(digest, ':')+1:] }

// UseBase makes image, an open regular file, the base of the snapshot's disk. Its digest is
// computed in the background while the parent boots, unless the store knows it already. Publish
// waits for it, Discard cancels it. UseBase is called at most once.
func (g *Staging) UseBase(image *os.File) (err error) {
	g.basing, err = g.addInBackground("base image", image, false)
	return err
}

// UseBoot is UseBase for the kernel and the initramfs that the parent boots from. The store keeps
// both files: if it cannot link them, it copies them.
func (g *Staging) UseBoot(kernel, initrd *os.File) (err error) {
	if g.kernel, err = g.addInBackground("kernel", kernel, true); err != nil {
		return err
	}
	g.initrd, err = g.addInBackground("initramfs", initrd, true)
	return err
}

// addInBackground adds a file that the snapshot names by its digest to the store.
func (g *Staging) addInBackground(what string, file *os.File, keep bool) (*basing, error) {
	// Opened again, because digesting moves the offset, which all copies of a descriptor share.
	f, err := os.Open(procPath(file))
	if err != nil {
		return nil, fmt.Errorf("use %s %s: %w", what, file.Name(), err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b := &basing{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(b.done)
		defer f.Close()
		atLowestPriority()
		if b.base, b.err = g.store.addBase(ctx, g, f, filepath.Clean(file.Name()), keep); b.err != nil {
			b.err = fmt.Errorf("use %s %s: %w", what, file.Name(), b.err)
		}
	}()
	return b, nil
}

// wait returns the base once it is in the store.
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

// useBases names in m the files given to UseBase and UseBoot.
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

// stopBasing cancels unfinished additions to the store, and reports whether there were any.
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

// lowestNice is the largest nice value, setpriority(2).
const lowestNice = 19

// atLowestPriority is called at the beginning of a goroutine. The goroutine never unlocks its
// thread, so that the thread ends with it, and with the thread the priority.
func atLowestPriority() {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), lowestNice)
}

// procPath returns a path to an open file.
func procPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// addBase digests an image and records where it is. From then on it is kept for g. With keep, a
// file that cannot be linked is copied.
func (s *Store) addBase(ctx context.Context, g *Staging, f *os.File, path string, keep bool) (snapshot.Base, error) {
	id, err := identify(f)
	if err != nil {
		return snapshot.Base{}, err
	}
	rec := record.Base{Digest: s.knownDigest(id), Path: path, File: record.File(id)}
	if rec.Digest == "" {
		if rec.Digest, err = digest(ctx, f); err != nil {
			return snapshot.Base{}, err
		}
		if now, err := identify(f); err != nil || now != id {
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
	if !linked && keep {
		rec.Path = s.baseLink(base.Digest)
		copied, err := copyBase(rec.Path, f)
		if err != nil {
			return base, err
		}
		rec.File = record.File(copied)
	}
	p, err := record.EncodeBase(&rec)
	if err != nil {
		return base, err
	}
	return base, s.essential(func() error { return atomicfile.WriteDurable(s.baseRecord(base.Digest), p, 0o600) })
}

// linkBase links an image into the store, and reports whether it could. If the image is on another
// file system, or the store may not link it, the store relies on its path.
func (s *Store) linkBase(f *os.File, digest string) (linked bool, err error) {
	name := s.baseLink(digest)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	err = unix.Linkat(unix.AT_FDCWD, procPath(f), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
	switch err {
	case nil:
		return true, nil
	case unix.EXDEV, unix.EPERM, unix.EACCES, unix.EMLINK, unix.ENOENT: // ENOENT: its last name is gone
		return false, nil
	}
	return false, fmt.Errorf("link it to %s: %w", name, err)
}

// copyBase copies a file into the store and flushes it to disk.
func copyBase(name string, f *os.File) (id fileID, err error) {
	err = atomicfile.Fill(name, func(tmp string) error {
		if err := copyFile(tmp, f); err != nil {
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
		id, err = identify(copied)
		return err
	})
	if err != nil {
		return fileID{}, fmt.Errorf("copy it to %s: %w", name, err)
	}
	return id, nil
}

// knownDigest returns the digest of a file that has been a base before and has not changed since,
// or "".
func (s *Store) knownDigest(id fileID) string {
	entries, err := os.ReadDir(s.bases())
	if err != nil {
		return ""
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), recordSuffix)
		if !ok {
			continue
		}
		if rec, err := s.readBase(name); err == nil && fileID(rec.File) == id {
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

// openBase opens the base image of a snapshot. Its length and the time of its latest change must be
// those of the file that was digested, because nothing is hashed during a fork.
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
	id, err := identify(f)
	if err == nil && (id.Bytes != base.Bytes || id.Bytes != rec.File.Bytes || id.ModNanos != rec.File.ModNanos) {
		err = fmt.Errorf("%s was changed after it was digested: build its image again and bake any snapshot from it",
			rec.Path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// dropBases drops the images that are the base of no snapshot, not even of one being made. If a
// manifest cannot be read its base is unknown, and all are kept.
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
	for _, e := range s.byTag {
		if e.manifest == nil && e.phase != phaseFailed {
			s.mu.Unlock()
			return nil
		}
		for _, base := range basesOf(e.manifest) {
			used[hexOf(base.Digest)] = true
		}
	}
	s.mu.Unlock()
	return emptyDir(s.bases(), func(name string) bool { return used[strings.TrimSuffix(name, recordSuffix)] })
}

// basesOf returns the files outside a snapshot that its manifest names by their digests: none if m
// is nil.
func basesOf(m *snapshot.Manifest) (bases []snapshot.Base) {
	if m != nil && m.Disk != nil {
		bases = append(bases, m.Disk.Base)
	}
	if m != nil && m.Boot != nil {
		bases = append(bases, m.Boot.Kernel, m.Boot.Initrd)
	}
	return bases
}
