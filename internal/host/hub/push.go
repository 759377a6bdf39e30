package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
)

// Sent is the result of Push.
type Sent struct {
	*artifact.Artifact
	Moved int64 // number of bytes that were sent, including failed tries
}

// Push writes a snapshot to a registry. It sends only blobs that the registry lacks, and the tag
// last. So after an error the registry has no new tag, and the next Push sends only the remaining
// blobs. Push reports its progress by calling on(progress), possibly concurrently.
func (h *Hub) Push(ctx context.Context, who, tag string, to Remote, on func(Progress)) (_ Sent, err error) {
	target, ok := to.ref.(name.Tag)
	if !ok {
		return Sent{}, invalid.Errorf(RemoteField, "%.200q: want a tag, REGISTRY/NAME:TAG: the digest is known only "+
			"after the push", to.ref.String())
	}
	leave, err := h.transfers.Wait(ctx, owner.FairShare(who, maxTransfers))
	if err != nil {
		return Sent{}, err
	}
	defer leave()
	defer h.trim()
	p := &push{hub: h, ctx: ctx, who: who, on: on, files: make(blobs)}
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
	c, err := p.dial(to, a)
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
	if err := out.Upload(ctx, repo, static.NewLayer(a.Config, artifact.ConfigType)); err != nil {
		return Sent{}, c.failed(err)
	}
	if err := out.Put(ctx, target, manifest(a.Manifest)); err != nil {
		return Sent{}, c.failed(err)
	}
	return Sent{a, p.moved}, nil
}

// manifest is an OCI manifest.
type manifest []byte

func (m manifest) RawManifest() ([]byte, error)        { return m, nil }
func (m manifest) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// push is a Push in progress.
type push struct {
	hub  *Hub
	ctx  context.Context
	who  string
	on   func(Progress)
	from *store.Exported

	mounts map[digest.Digest]name.Repository // other repositories that may have the blobs

	mu    sync.Mutex
	files blobs
	moved int64
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

// open returns the blob of a file. If the cache no longer has the blob, open compresses the file
// again.
func (p *push) open(i int, b artifact.Blob) (*os.File, error) {
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

// maxMounts is the maximum number of repositories from which a push mounts blobs. The push's token
// needs a scope for each of these repositories.
const maxMounts = 4

// dial gets a token for the repository, and for the other repositories from which blobs are
// mounted. If the registry refuses this token, for example because one of the other repositories
// was deleted, dial forgets these and asks for a token for the repository alone.
func (p *push) dial(to Remote, a *artifact.Artifact) (*conn, error) {
	repo := to.ref.Context()
	scopes := append(p.findMounts(a, repo), repo.Scope(transport.PushScope))
	c, err := p.hub.dial(p.ctx, to, scopes...)
	var refused *RegistryError
	if len(scopes) == 1 || !errors.As(err, &refused) || refused.Status/100 != 4 {
		return c, err
	}
	if c, err = p.hub.dial(p.ctx, to, repo.Scope(transport.PushScope)); err != nil {
		return nil, err
	}
	for d := range p.mounts {
		p.hub.cache.forgetSource(p.who, d)
	}
	p.mounts = nil
	return c, nil
}

// findMounts finds other repositories of the registry that this client has pushed blobs to, and returns the scopes
// for mounting these blobs.
func (p *push) findMounts(a *artifact.Artifact, to name.Repository) (scopes []string) {
	p.mounts = make(map[digest.Digest]name.Repository)
	for _, b := range a.Blobs {
		from, ok := p.hub.cache.source(p.who, b.Digest, to)
		if !ok {
			continue
		}
		scope := from.Scope(transport.PullScope)
		if !slices.Contains(scopes, scope) {
			if len(scopes) == maxMounts {
				continue
			}
			scopes = append(scopes, scope)
		}
		p.mounts[b.Digest] = from
	}
	return scopes
}

// upload sends the blobs, several at a time. Files with the same content have one blob.
func (p *push) upload(ctx context.Context, out *remote.Pusher, to name.Repository, a *artifact.Artifact) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxBlobs)
	seen := make(map[string]bool)
	for i, b := range a.Blobs {
		if seen[b.Digest.String()] {
			continue
		}
		seen[b.Digest.String()] = true
		g.Go(func() error { return p.uploadOne(ctx, out, to, i, b) })
	}
	return g.Wait()
}

func (p *push) uploadOne(ctx context.Context, out *remote.Pusher, to name.Repository, i int, b artifact.Blob) error {
	l := &layer{push: p, i: i, b: b, step: step{on: p.on, now: Progress{File: b.Part.Name, State: Pushing, Bytes: b.Size}}}
	var send v1.Layer = l
	if from, ok := p.mounts[b.Digest]; ok {
		send = &remote.MountableLayer{Layer: l, Reference: from.Digest(b.Digest.String())}
	}
	err := out.Upload(ctx, to, send)
	l.begin(nil)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.moved += l.sent
	p.mu.Unlock()
	state := Pushed
	if l.sent == 0 {
		state = Exists
	}
	l.end(state)
	_ = p.hub.cache.setSource(p.who, b.Digest, to) // it only saves work of later pushes
	return nil
}

// layer is a blob for go-containerregistry. If the registry answers before it has read a request,
// package http may read the request's body even after Upload has returned. Such late reads do not
// count as progress: only the bytes of the present try count.
type layer struct {
	*push
	step
	i int
	b artifact.Blob

	trying  sync.Mutex
	present *reading // nil: no try is under way
	sent    int64
}

// begin sets the present try. If its argument is nil, the present try ends.
func (l *layer) begin(try *reading) {
	l.trying.Lock()
	defer l.trying.Unlock()
	l.present, l.now.Done = try, 0
}

// count adds n bytes to the progress, if try is the present try.
func (l *layer) count(try *reading, n int64) {
	l.trying.Lock()
	defer l.trying.Unlock()
	if l.present == try {
		l.sent += n
		l.add(n)
	}
}

var errCompressed = errors.New("the content of a blob is read by package artifact only")

func (l *layer) Digest() (v1.Hash, error)             { return v1.NewHash(l.b.Digest.String()) }
func (l *layer) DiffID() (v1.Hash, error)             { return v1.Hash{}, errCompressed }
func (l *layer) Uncompressed() (io.ReadCloser, error) { return nil, errCompressed }
func (l *layer) Size() (int64, error)                 { return l.b.Size, nil }
func (l *layer) MediaType() (types.MediaType, error)  { return artifact.FileType, nil }

// Compressed returns the bytes of the blob. It is called again after each failed try.
func (l *layer) Compressed() (io.ReadCloser, error) {
	f, err := l.open(l.i, l.b)
	if err != nil {
		return nil, err
	}
	try := &reading{io.NewSectionReader(f, 0, l.b.Size), l}
	l.begin(try)
	return try, nil
}

// reading is the reader of one try to send a blob. It counts the bytes.
type reading struct {
	*io.SectionReader
	l *layer
}

func (r *reading) Read(p []byte) (int, error) {
	n, err := r.SectionReader.Read(p)
	r.l.count(r, int64(n))
	return n, err
}

func (r *reading) Close() error { return nil }
