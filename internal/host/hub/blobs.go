package hub

import (
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/go-digest"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/format/snapshot"
)

// blobs holds the open files of blobs with verified digests. A request keeps its blobs open, so
// that the cache can drop them.
type blobs map[digest.Digest]*os.File

func (b blobs) close() {
	for _, f := range b {
		f.Close()
	}
}

// add adds an open blob. Two files with the same content have the same blob.
func (b blobs) add(d digest.Digest, f *os.File) {
	if b[d] != nil {
		f.Close()
		return
	}
	b[d] = f
}

// of(d) returns the open file of the blob with the digest d.
func (b blobs) of(d digest.Digest) (*os.File, error) {
	if b[d] == nil {
		return nil, &artifact.Error{Err: fmt.Errorf("the blob %s is missing", d)}
	}
	return b[d], nil
}

// read returns the content of a small blob.
func (b blobs) read(d digest.Digest, limit int64) ([]byte, error) {
	f, err := b.of(d)
	if err != nil {
		return nil, err
	}
	p, err := io.ReadAll(io.NewSectionReader(f, 0, limit+1))
	if err == nil && int64(len(p)) > limit {
		err = &artifact.Error{Err: fmt.Errorf("the blob %s has more than %d bytes", d, limit)}
	}
	return p, err
}

// load reads the artifact whose manifest has the given digest.
func (b blobs) load(d digest.Digest) (*artifact.Artifact, error) {
	manifest, err := b.read(d, artifact.MaxManifest)
	if err != nil {
		return nil, err
	}
	config, err := artifact.ConfigOf(manifest)
	if err != nil {
		return nil, err
	}
	text, err := b.read(config.Digest, snapshot.MaxManifest)
	if err != nil {
		return nil, err
	}
	return artifact.Parse(manifest, text)
}
