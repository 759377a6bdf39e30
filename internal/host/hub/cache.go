package hub

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/format/snapshot"
)

// cache keeps blobs in files that have their digests as names. Only complete and verified blobs have such a
// name.
//
//	<dir>/blobs/<hex>     a blob
//	<dir>/made/<hex>      an artifact.Blob, for the file with this digest (see snapshot.Digester)
//	<dir>/pushed/<hex>    the last repository to which a client has pushed a blob (see pushedBy)
//	<dir>/signed/<ID>/    the signatures of a snapshot (see Attached)
//	<dir>/pulled/<ID>     the digest of the artifact that a snapshot came from (see setPulled)
//	<dir>/blobs/.new-*    a blob that is being written
type cache struct{ dir *os.File }

const tmpPrefix = ".new-"

func openCache(dir string) (*cache, error) {
	for _, sub := range []string{"blobs", "made", "pushed", "signed", "pulled"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, err
		}
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	c := &cache{d}
	left, err := filepath.Glob(c.path("blobs", tmpPrefix+"*"))
	for _, name := range left {
		err = errors.Join(err, os.Remove(name))
	}
	return c, errors.Join(err, atomicfile.Clean(c.path("made", "")), atomicfile.Clean(c.path("pushed", "")),
		atomicfile.Clean(c.path("pulled", "")))
}

func (c *cache) path(sub, name string) string { return filepath.Join(c.dir.Name(), sub, name) }

func (c *cache) blob(d digest.Digest) string { return c.path("blobs", d.Encoded()) }

// open opens a blob and marks it as used. It returns nil if the cache does not have the blob.
func (c *cache) open(d digest.Digest) *os.File {
	f, err := os.Open(c.blob(d))
	if err != nil {
		return nil
	}
	now := time.Now()
	_ = os.Chtimes(f.Name(), now, now) // if this fails, trim removes the blob too early
	return f
}

// has(d) reports whether the cache has the blob with the digest d.
func (c *cache) has(d digest.Digest) bool {
	_, err := os.Stat(c.blob(d))
	return err == nil
}

// remove removes a blob. Open files of the blob can still be read.
func (c *cache) remove(d digest.Digest) { _ = os.Remove(c.blob(d)) } // trim tries again

// add creates a blob. It calls fill, which writes the blob to a file and returns the blob's digest.
func (c *cache) add(fill func(tmp *os.File) (digest.Digest, error)) (_ *os.File, err error) {
	f, err := os.CreateTemp(c.path("blobs", ""), tmpPrefix)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	d, err := fill(f)
	if err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	return f, os.Rename(f.Name(), c.blob(d))
}

// create creates a file for a blob whose parts arrive in any order. Before settle is called, the
// file has a temporary name, and the next daemon removes it.
func (c *cache) create() (*os.File, error) { return os.CreateTemp(c.path("blobs", ""), tmpPrefix) }

// settle adds a verified blob, in a file that create has made.
func (c *cache) settle(f *os.File, d digest.Digest) error {
	if err := f.Sync(); err != nil {
		return err
	}
	return os.Rename(f.Name(), c.blob(d))
}

// put adds a blob with the given digest and size. If r has different content, the error is an
// *artifact.Error.
func (c *cache) put(d digest.Digest, size int64, r io.Reader) (*os.File, error) {
	return c.add(func(tmp *os.File) (digest.Digest, error) { return d, receive(tmp, d, size, r) })
}

// receive copies a blob to w, and compares it with its digest and size.
func receive(w io.Writer, d digest.Digest, size int64, r io.Reader) error {
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, sum), io.LimitReader(r, size+1))
	if err != nil {
		return err
	}
	if got := digest.NewDigestFromBytes(digest.SHA256, sum.Sum(nil)); n != size || got != d {
		return &artifact.Error{
			Err: fmt.Errorf("blob %s has %d bytes and the digest %s, not %d bytes", d, n, got, size),
		}
	}
	return nil
}

// record returns the path of the record about a packed file.
func (c *cache) record(p artifact.Part) string {
	return c.path("made", p.Digest[strings.LastIndexByte(p.Digest, ':')+1:])
}

// remember records how a file was packed.
func (c *cache) remember(b artifact.Blob) error {
	p, err := json.Marshal(b)
	if err != nil {
		return err
	}
	return atomicfile.Write(c.record(b.Part), p, 0o600)
}

// known returns the description of a file's blob, if the file was packed before. The cache may no
// longer have the blob.
func (c *cache) known(p artifact.Part) (b artifact.Blob, ok bool) {
	if b, ok = readRecord(c.record(p)); !ok || b.Part.Digest != p.Digest || b.Part.Bytes != p.Bytes {
		return artifact.Blob{}, false
	}
	b.Part = p
	return b, true
}

// forget removes the record of a file.
func (c *cache) forget(p artifact.Part) { _ = os.Remove(c.record(p)) }

// pushedBy returns the path of the record that says to which repository a client has pushed a blob.
// Each client has records of its own, so that the names of its repositories are not sent with the
// credentials of other clients.
func (c *cache) pushedBy(who string, d digest.Digest) string {
	return c.path("pushed", digest.FromString(string(d)+" "+who).Encoded())
}

// forgetParts removes the records and the blobs of the packed files of a deleted snapshot. It keeps
// the records and blobs of files that another snapshot also has. The function has reports whether
// any snapshot has a file with the given digest.
func (c *cache) forgetParts(gone *snapshot.Manifest, has func(digest string) bool) (err error) {
	for _, p := range artifact.Parts(gone) {
		if !has(p.Digest) {
			err = errors.Join(err, c.forgetFile(c.record(p)))
		}
	}
	return err
}

// forgetFetched removes the blobs of a snapshot that is now in the store. An earlier pull may have
// left some of them. Blobs that this host has packed stay: they have records, and are removed
// together with their snapshots.
func (c *cache) forgetFetched(list []artifact.Blob) {
	for _, b := range list {
		if packed, ok := c.known(b.Part); !ok || packed.Digest != b.Digest {
			c.remove(b.Digest)
		}
	}
}

// forgetOthers removes the records and the blobs of all packed files that no snapshot has.
func (c *cache) forgetOthers(has func(digest string) bool) error {
	records, err := os.ReadDir(c.path("made", ""))
	if err != nil {
		return err
	}
	for _, r := range records {
		path := c.path("made", r.Name())
		if b, ok := readRecord(path); ok && !has(b.Part.Digest) {
			err = errors.Join(err, c.forgetFile(path))
		}
	}
	return err
}

// forgetFile removes the record of a packed file, and its blob. A file that was never packed has no
// record.
func (c *cache) forgetFile(record string) error {
	b, ok := readRecord(record)
	if !ok {
		return nil
	}
	var err error
	for _, path := range []string{c.blob(b.Digest), record} {
		// The cache may have dropped the blob, and a push may forget the record at the same time.
		if rmErr := os.Remove(path); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
			err = errors.Join(err, rmErr)
		}
	}
	return err
}

// readRecord reads the record of a packed file.
func readRecord(path string) (b artifact.Blob, ok bool) {
	text, err := os.ReadFile(path)
	return b, err == nil && json.Unmarshal(text, &b) == nil && b.Digest.Validate() == nil
}

// setSource records that a client has pushed a blob to a repository.
func (c *cache) setSource(who string, d digest.Digest, repo name.Repository) error {
	return atomicfile.Write(c.pushedBy(who, d), []byte(repo.Name()), 0o600)
}

// forgetSource removes a record of setSource.
func (c *cache) forgetSource(who string, d digest.Digest) { _ = os.Remove(c.pushedBy(who, d)) }

// source returns another repository of the same registry, to which the client has pushed the blob.
func (c *cache) source(who string, d digest.Digest, to name.Repository) (from name.Repository, ok bool) {
	text, err := os.ReadFile(c.pushedBy(who, d))
	if err != nil {
		return from, false
	}
	from, err = name.NewRepository(string(text))
	return from, err == nil && from.RegistryStr() == to.RegistryStr() && from.Name() != to.Name()
}

// made returns the blob of a file that was packed before, and opens it. If the cache does not have
// the blob, the *os.File is nil.
func (c *cache) made(p artifact.Part) (artifact.Blob, *os.File) {
	b, ok := c.known(p)
	if !ok {
		return b, nil
	}
	f := c.open(b.Digest)
	if f == nil {
		return b, nil
	}
	if st, err := f.Stat(); err != nil || st.Size() != b.Size {
		f.Close()
		c.remove(b.Digest)
		return b, nil
	}
	return b, f
}

// maxRecords is the maximum number of records about packed files.
const maxRecords = 10_000

// trim removes the least recently used blobs until at most limit bytes are left.
func (c *cache) trim(limit int64) error {
	blobs, err := c.list("blobs")
	if err != nil {
		return err
	}
	for _, b := range blobs {
		limit -= b.Size()
		if limit < 0 && !strings.HasPrefix(b.Name(), tmpPrefix) {
			err = errors.Join(err, os.Remove(c.path("blobs", b.Name())))
		}
	}
	return errors.Join(err, c.trimRecords("made"), c.trimRecords("pushed"))
}

func (c *cache) trimRecords(sub string) error {
	records, err := c.list(sub)
	for _, r := range records[min(len(records), maxRecords):] {
		err = errors.Join(err, os.Remove(c.path(sub, r.Name())))
	}
	return err
}

// list returns the files in a directory of the cache, most recently used first.
func (c *cache) list(sub string) (list []fs.FileInfo, err error) {
	entries, err := os.ReadDir(c.path(sub, ""))
	for _, e := range entries {
		if info, err := e.Info(); err == nil { // the file may just have been removed
			list = append(list, info)
		}
	}
	slices.SortFunc(list, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	return list, err
}
