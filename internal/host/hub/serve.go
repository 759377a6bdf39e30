package hub

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/store"
)

const (
	// maxServed is the maximum number of descriptions of served snapshots that are kept in memory.
	maxServed = 16

	// answerTime is the time after which a request that waits for a packing gets ErrPacking. A client
	// gives up after a minute without an answer (see wire.stall).
	answerTime = 40 * time.Second
)

// Errors of Describe and OpenBlob.
var (
	ErrPacking = errors.New("the snapshot is being packed: ask again in a few seconds")
	ErrNoBlob  = errors.New("the snapshot has no such blob")
)

// packings holds the compressions of snapshots for other daemons. A packing continues if its client
// disconnects, so that the client can ask again.
type packings struct {
	mu   sync.Mutex
	jobs map[string]*packing // running packings, and finished packings that have described a snapshot
}

// packing is one compression: of all files of a snapshot, to describe the snapshot, or of one blob
// that the cache no longer has. The key in packings.jobs is the ID of the snapshot, followed by the
// digest of the blob if there is one.
type packing struct {
	done     chan struct{} // closed at the end
	artifact *artifact.Artifact
	err      error
}

// Describe returns the artifact of a snapshot for a client, which may be another daemon. The first
// call compresses files that were never packed. If this takes long, the error is ErrPacking, and the
// work goes on. The error is also ErrPacking if too many packings of the client wait.
func (h *Hub) Describe(ctx context.Context, who, tag string) (*artifact.Artifact, error) {
	a, _, err := h.describe(ctx, who, tag)
	return a, err
}

func (h *Hub) describe(ctx context.Context, who, tag string) (a *artifact.Artifact, id string, err error) {
	if id, _, err = h.cfg.Store.Version(tag); err != nil {
		return nil, "", err
	}
	a, err = h.await(ctx, id, func(ctx context.Context) (a *artifact.Artifact, err error) {
		defer h.trim()
		err = h.withFiles(ctx, who, tag, id, func(p *push) error { a, err = p.describe(); return err })
		return a, err
	})
	return a, id, err
}

// await returns the result of the packing with the given key. If there is no such packing, await starts
// one, which calls run.
func (h *Hub) await(ctx context.Context, key string, run func(context.Context) (*artifact.Artifact, error)) (
	*artifact.Artifact, error) {
	p := h.packings.start(h.cfg.Stopping, key, run)
	timer := time.NewTimer(h.answerTime)
	defer timer.Stop()
	select {
	case <-p.done:
		if full := (*gate.FullError)(nil); errors.As(p.err, &full) { // too many packings of this client wait
			return nil, ErrPacking
		}
		return p.artifact, p.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
		return nil, ErrPacking
	}
}

func (s *packings) start(ctx context.Context, key string,
	run func(context.Context) (*artifact.Artifact, error),
) *packing {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.jobs[key]; p != nil {
		return p
	}
	if s.jobs == nil {
		s.jobs = make(map[string]*packing)
	}
	for old, p := range s.jobs {
		if len(s.jobs) >= maxServed && p.ended() {
			delete(s.jobs, old)
		}
	}
	p := &packing{done: make(chan struct{})}
	s.jobs[key] = p
	go func() {
		p.artifact, p.err = run(ctx)
		if p.artifact == nil {
			s.forget(key)
		}
		close(p.done)
	}()
	return p
}

func (s *packings) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.jobs, key)
}

func (p *packing) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// withFiles calls do with the open files of a snapshot. If the tag now names a snapshot with
// another ID, the error is a *store.NotFoundError.
func (h *Hub) withFiles(ctx context.Context, who, tag, id string, do func(*push) error) (err error) {
	p := &push{sender: sender{hub: h, who: who}, ctx: ctx, files: make(blobs)}
	if p.from, err = h.cfg.Store.Export(ctx, tag); err != nil {
		return err
	}
	defer p.from.Close()
	defer p.files.close()
	if p.from.Manifest.ID != id {
		return &store.NotFoundError{Tag: tag}
	}
	return do(p)
}

// Content is the content of a blob.
type Content struct {
	io.ReadSeeker
	file *os.File // nil: the content is in memory
}

// Close frees the content.
func (c *Content) Close() {
	if c.file != nil {
		c.file.Close()
	}
}

// OpenBlob opens a blob of a snapshot: one of its files, or its configuration. If the cache no longer has the blob,
// OpenBlob compresses the file again, as Describe does. If the snapshot does not have the blob, the error is
// ErrNoBlob. The content can be read after the snapshot has been deleted.
func (h *Hub) OpenBlob(ctx context.Context, who, tag string, d digest.Digest) (*Content, error) {
	a, id, err := h.describe(ctx, who, tag)
	if err != nil {
		return nil, err
	}
	if d == digest.FromBytes(a.Config) {
		return &Content{ReadSeeker: bytes.NewReader(a.Config)}, nil
	}
	i := slices.IndexFunc(a.Blobs, func(b artifact.Blob) bool { return b.Digest == d })
	if i < 0 {
		return nil, ErrNoBlob
	}
	defer h.trim() // the blob is open by then, so it can be read even if trim removes it
	if c := h.cached(a.Blobs[i]); c != nil {
		return c, nil
	}
	_, err = h.await(ctx, id+" "+d.Encoded(), func(ctx context.Context) (*artifact.Artifact, error) {
		return nil, h.withFiles(ctx, who, tag, id, func(p *push) error { _, err := p.file(i, a.Blobs[i]); return err })
	})
	if err != nil && !errors.Is(err, ErrPacking) && ctx.Err() == nil {
		h.packings.forget(id) // the description may name blobs that cannot be made again
	}
	if err != nil {
		return nil, err
	}
	if c := h.cached(a.Blobs[i]); c != nil {
		return c, nil
	}
	return nil, ErrPacking // the cache has already dropped the new blob
}

// cached opens a blob in the cache. It returns nil if the cache does not have the blob.
func (h *Hub) cached(b artifact.Blob) *Content {
	f := h.cache.open(b.Digest)
	if f == nil {
		return nil
	}
	if st, err := f.Stat(); err != nil || st.Size() != b.Size {
		f.Close()
		h.cache.remove(b.Digest)
		return nil
	}
	return &Content{io.NewSectionReader(f, 0, b.Size), f}
}
