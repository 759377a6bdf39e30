package template

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/invalid"
)

// Bounds on archives, in bytes.
const (
	maxArchive  = 4 << 30  // bytes of one archive
	maxOfClient = 8 << 30  // bytes of all archives of one client
	maxArchives = 16 << 30 // bytes of all archives
	maxFiles    = maxSteps // number of archives of one build; empty archives count too
	keepFree    = 1 << 30  // free disk space that archives must leave
)

// uploads stores the archives that clients have sent for builds. Each build has a directory, with a
// file for each archive.
type uploads struct {
	dir string

	mu     sync.Mutex
	bytes  int64                       // bytes of stored archives, and of archives being received
	by     map[string]int64            // bytes, by client
	coming int64                       // full size of the archives being received
	sizes  map[string]map[string]int64 // sizes of stored archives, by build and hash
}

// newUploads returns an empty store. It removes the archives of an earlier daemon, whose builds no
// longer exist.
func newUploads(dir string) (*uploads, error) {
	err := os.RemoveAll(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("open the store of archives for builds: %w", err)
	}
	return &uploads{dir: dir, by: make(map[string]int64), sizes: make(map[string]map[string]int64)}, nil
}

// hashForm matches the names of archives. The SDKs call them hashes, but they are not hashes of the
// archives.
var hashForm = regexp.MustCompile(`^[0-9A-Za-z_-]{1,128}$`)

func (u *uploads) path(build, hash string) string { return filepath.Join(u.dir, build, hash) }

func (u *uploads) has(build, hash string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok := u.sizes[build][hash]
	return ok
}

// countLocked adds n to the total and to the bytes of a client.
func (u *uploads) countLocked(who string, n int64) {
	u.bytes += n
	if u.by[who] += n; u.by[who] == 0 {
		delete(u.by, who)
	}
}

// reserve reserves space for an incoming archive.
func (u *uploads) reserve(bd *Build, size int64) error {
	switch {
	case size < 0:
		return invalid.Errorf("Content-Length", "missing: it must say how long the archive is")
	case size > maxArchive:
		return invalid.Errorf("Content-Length", "%d: an archive may have %d GiB", size, maxArchive>>30)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.sizes[bd.ID]) >= maxFiles {
		return invalid.Errorf("hash", "the build has %d archives already, and can have no more steps", maxFiles)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(u.dir, &st); err != nil {
		return fmt.Errorf("ask for the room in %s: %w", u.dir, err)
	}
	free := int64(st.Bavail)*st.Bsize - u.coming
	if size > free-keepFree || u.bytes+size > maxArchives || u.by[bd.Who]+size > maxOfClient {
		return fmt.Errorf("archives of builds: no room for %d MiB more: %w", size>>20, syscall.ENOSPC)
	}
	u.countLocked(bd.Who, size)
	u.coming += size
	return nil
}

// put stores an archive of size bytes.
func (u *uploads) put(bd *Build, hash string, size int64, content io.Reader) (err error) {
	if err := u.reserve(bd, size); err != nil {
		return err
	}
	kept := false
	defer func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.coming -= size
		if !kept {
			u.countLocked(bd.Who, -size)
		}
	}()
	if err := os.Mkdir(filepath.Join(u.dir, bd.ID), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("store an archive: %w", err)
	}
	f, err := os.CreateTemp(filepath.Join(u.dir, bd.ID), ".*")
	if err != nil {
		return fmt.Errorf("store an archive: %w", err)
	}
	defer os.Remove(f.Name()) // has no effect after the rename
	defer f.Close()
	if _, err := io.CopyN(f, content, size); err != nil {
		return fmt.Errorf("store an archive: %w", err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	// The rename fails if the build has ended and its directory was removed.
	if err := os.Rename(f.Name(), u.path(bd.ID, hash)); err != nil {
		return fmt.Errorf("store an archive: %w", err)
	}
	of := u.sizes[bd.ID]
	if of == nil {
		of = make(map[string]int64)
		u.sizes[bd.ID] = of
	}
	u.countLocked(bd.Who, -of[hash])
	of[hash], kept = size, true
	return nil
}

// drop removes the archives of a build. They count against the bounds until they are removed.
func (u *uploads) drop(bd *Build) {
	u.mu.Lock()
	var size int64
	for _, n := range u.sizes[bd.ID] {
		size += n
	}
	delete(u.sizes, bd.ID)
	u.mu.Unlock()
	_ = os.RemoveAll(filepath.Join(u.dir, bd.ID)) // the next start of the daemon removes remaining files
	u.mu.Lock()
	defer u.mu.Unlock()
	u.countLocked(bd.Who, -size)
}

// Has reports whether an archive has been uploaded for a build.
func (b *Builder) Has(bd *Build, hash string) bool { return b.uploads.has(bd.ID, hash) }

// Waiting returns the build with the given id if the build has not been started. The build may
// belong to any client.
func (b *Builder) Waiting(id string) (*Build, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, bd := range b.builds {
		if bd.ID == id && bd.status == Waiting {
			return bd, nil
		}
	}
	return nil, ErrUnknown
}

// Upload stores an archive of size bytes for a waiting build. It replaces an archive with the same
// hash.
func (b *Builder) Upload(bd *Build, hash string, size int64, content io.Reader) error {
	if !hashForm.MatchString(hash) {
		return invalid.Errorf("hash", "%.140q: want 1 to 128 letters, digits, '_' and '-'", hash)
	}
	if status, _ := b.State(bd); status != Waiting {
		return ErrUnknown
	}
	if err := b.uploads.put(bd, hash, size, content); err != nil {
		return err
	}
	// The archives of the build were removed while the new archive was received.
	if status, _ := b.State(bd); status == Ready || status == Failed {
		b.uploads.drop(bd)
		return ErrUnknown
	}
	return nil
}
