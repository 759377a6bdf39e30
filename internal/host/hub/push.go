package hub

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
)

// Sent is the result of Push.
type Sent struct {
	*artifact.Artifact
	Moved int64 // number of bytes that were sent, including failed tries
	Hot   int   // number of frames that the first forks need; 0: unknown
}

// Push writes a snapshot to a registry. It sends only blobs that the registry lacks. It writes the
// tag last. So after an error the registry has no new tag, and the next Push sends only the
// remaining blobs. Push reports its progress by calling on(progress), possibly concurrently.
//
// If recordHot is set, Push also writes a list of the frames that the first forks need. If the
// registry has no such list yet, Push lets the snapshot run twice to find these frames.
func (h *Hub) Push(ctx context.Context, who, tag string, to Remote, recordHot bool, on func(Progress)) (
	_ Sent, err error) {
	target, err := to.tag()
	if err != nil {
		return Sent{}, err
	}
	leave, err := h.transfers.Wait(ctx, owner.FairShare(who, maxTransfers))
	if err != nil {
		return Sent{}, err
	}
	defer leave()
	defer h.trim()
	p := &push{sender: sender{hub: h, who: who, on: on}, ctx: ctx, files: make(blobs)}
	p.content = p.open
	if p.from, err = h.cfg.Store.Export(ctx, tag); err != nil {
		return Sent{}, err
	}
	defer p.from.Close()
	defer p.files.close()
	a, err := p.describe()
	if err != nil {
		return Sent{}, err
	}
	repo := target.Context()
	c, err := p.dial(ctx, to, a)
	if err != nil {
		return Sent{}, err
	}
	out, err := c.pusher()
	if err != nil {
		return Sent{}, err
	}
	if err := p.upload(ctx, out, repo, a); err != nil {
		return Sent{}, c.failed(err)
	}
	var hot int
	if kept := h.hot.Of(p.from.Manifest.ID); recordHot || kept != nil {
		if hot, err = p.pushHot(c, out, repo, a, recordHot, kept); err != nil {
			return Sent{}, err
		}
	}
	if err := out.Put(ctx, target, manifest(a.Manifest)); err != nil {
		return Sent{}, c.failed(err)
	}
	return Sent{a, p.moved, hot}, nil
}

// pushHot writes a list of hot frames if the registry has none. The list is newly recorded, or is
// the list kept for the snapshot. The manifest of the snapshot comes first, because a registry may
// refuse artifacts that refer to a manifest that it lacks. The tag comes last, so that a snapshot
// with this tag has its list.
func (p *push) pushHot(c *conn, out *remote.Pusher, repo name.Repository, a *artifact.Artifact, record bool,
	kept []byte) (int, error) {
	s, list := p.hub.findHot(p.ctx, c, a.Digest())
	defer func() { p.hub.keepHot(p.from.Manifest.ID, s.file) }()
	if len(s.text) > 0 {
		return list.Frames(), nil
	}
	var err error
	if record {
		s, list, err = p.recordHot(a)
	} else if list, err = artifact.ParseHot(kept); err == nil {
		s, err = hotReferrer(a, kept)
	}
	if err != nil {
		return 0, err
	}
	err = out.Put(p.ctx, repo.Digest(a.Digest().String()), manifest(a.Manifest))
	if err == nil {
		err = s.putHot(p.ctx, out, repo)
	}
	if err != nil {
		return 0, c.failed(err)
	}
	return list.Frames(), nil
}

// push is a Push in progress.
type push struct {
	sender
	ctx  context.Context
	from *store.Exported

	files blobs // guarded by sender.mu
}

// describe returns the artifact. It compresses only files that were never packed.
func (p *push) describe() (*artifact.Artifact, error) {
	var list []artifact.Blob
	for i, part := range artifact.Parts(p.from.Manifest) {
		b, ok := p.hub.cache.known(part)
		if !ok {
			var err error
			if b, err = p.compress(i, part); err != nil {
				return nil, err
			}
		}
		list = append(list, b)
	}
	return artifact.New(artifact.Portable(p.from.Manifest), list)
}

// compress makes the blob of a file, and keeps it open.
func (p *push) compress(i int, part artifact.Part) (artifact.Blob, error) {
	leave, err := p.hub.wait(p.ctx, p.who)
	if err != nil {
		return artifact.Blob{}, err
	}
	defer leave()
	b, f, err := p.hub.encode(p.ctx, part, p.from.Files[i])
	if err != nil {
		return b, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.files.add(b.Digest, f)
	return b, nil
}

// open returns the content of the blob of a file. If the cache no longer has the blob, open compresses the file again.
func (p *push) open(_ context.Context, i int, b artifact.Blob) (io.ReadCloser, error) {
	f, err := p.file(i, b)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(io.NewSectionReader(f, 0, b.Size)), nil // Push closes the file
}

// file returns the open file of a blob.
func (p *push) file(i int, b artifact.Blob) (*os.File, error) {
	p.mu.Lock()
	f := p.files[b.Digest]
	p.mu.Unlock()
	if f != nil {
		return f, nil
	}
	again, err := p.compress(i, b.Part)
	if err != nil {
		return nil, err
	}
	if again.Digest != b.Digest { // another version of forkd has recorded the blob, and compressed it differently
		p.hub.cache.forget(b.Part)
		return nil, fmt.Errorf("%s was packed with other bytes before: push it again", b.Part.Name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.files.of(b.Digest)
}
