package hub

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/go-digest"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/host/framequeue"
)

// incoming is a blob with its index. Its frames arrive in any order, or have all arrived.
type incoming struct {
	b      artifact.Blob
	f      *os.File
	frames *artifact.Frameset
	fresh  bool // the file has a temporary name, and close removes it
}

// readIncoming returns a blob of the cache, which has all its frames.
func readIncoming(f *os.File, b artifact.Blob) (*incoming, error) {
	p := make([]byte, b.IndexBytes)
	_, err := f.ReadAt(p, b.Size-b.IndexBytes)
	if err == nil || errors.Is(err, io.EOF) {
		var frames *artifact.Frameset
		if frames, err = artifact.ParseFrames(p, b); err == nil {
			return &incoming{b: b, f: f, frames: frames}, nil
		}
	}
	return nil, errors.Join(err, f.Close())
}

func (in *incoming) close() {
	if in.fresh {
		_ = os.Remove(in.f.Name()) // the next daemon tries again
	}
	_ = in.f.Close()
}

// check compares the whole blob with its digest.
func (in *incoming) check() error {
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(in.f, 0, in.b.Size)); err != nil {
		return err
	}
	if got := digest.NewDigestFromBytes(digest.SHA256, sum.Sum(nil)); got != in.b.Digest {
		return &artifact.Error{Err: fmt.Errorf("blob %s of %s: its digest is %s", in.b.Digest, in.b.Part.Name, got)}
	}
	return nil
}

// queueOf returns a queue of the frames of blobs.
func queueOf(list []*incoming, count func(awaited bool, bytes int64)) *framequeue.Queue {
	blobs := make([]framequeue.Blob, len(list))
	for i, in := range list {
		blobs[i] = framequeue.Blob{Digest: in.b.Digest, Frames: in.frames, Complete: !in.fresh}
	}
	return framequeue.New(blobs, count)
}
