package hub

import (
	"context"
	"errors"
	"io"
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
)

// sender sends the files of an artifact to a registry, for a push or for a copy.
type sender struct {
	hub *Hub
	who string
	on  func(Progress)

	// content opens the blob of the artifact's i-th file. It is called only if the registry lacks the blob, and once for
	// each try. The context ends with the upload.
	content func(ctx context.Context, i int, b artifact.Blob) (io.ReadCloser, error)

	source *name.Repository                  // nil, or the repository that the artifact is copied from
	mounts map[digest.Digest]name.Repository // other repositories of the registry that may have the blobs

	mu    sync.Mutex
	moved int64 // number of bytes that were sent, including failed tries
}

// maxMounts is the maximum number of repositories from which a push mounts blobs. The push's token
// needs a scope for each of these repositories.
const maxMounts = 4

// dial gets a token for the repository, and for the other repositories from which blobs are
// mounted. If the registry refuses this token, for example because one of the other repositories
// was deleted, dial forgets the other repositories and asks for a token for the repository alone.
func (s *sender) dial(ctx context.Context, to Remote, a *artifact.Artifact) (*conn, error) {
	repo := to.ref.Context()
	scopes := append(s.findMounts(a, repo), repo.Scope(transport.PushScope))
	c, err := s.hub.dial(ctx, to, scopes...)
	var refused *RegistryError
	if len(scopes) == 1 || !errors.As(err, &refused) || refused.Status/100 != 4 {
		return c, err
	}
	if c, err = s.hub.dial(ctx, to, repo.Scope(transport.PushScope)); err != nil {
		return nil, err
	}
	for d := range s.mounts {
		s.hub.cache.forgetSource(s.who, d)
	}
	s.mounts = nil
	return c, nil
}

// findMounts finds other repositories of the registry that have the blobs: the source of a copy, or repositories that
// this client has pushed blobs to. It returns the scopes for mounting these blobs.
func (s *sender) findMounts(a *artifact.Artifact, to name.Repository) (scopes []string) {
	s.mounts = make(map[digest.Digest]name.Repository)
	for _, b := range a.Blobs {
		from, ok := s.mountOf(b.Digest, to)
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
		s.mounts[b.Digest] = from
	}
	return scopes
}

// mountOf returns another repository of the same registry that has a blob.
func (s *sender) mountOf(d digest.Digest, to name.Repository) (from name.Repository, ok bool) {
	if s.source != nil && s.source.RegistryStr() == to.RegistryStr() {
		return *s.source, s.source.Name() != to.Name()
	}
	return s.hub.cache.source(s.who, d, to)
}

// upload sends the blobs of the files, several at a time, and then the configuration. Files with the same content have
// one blob.
func (s *sender) upload(ctx context.Context, out *remote.Pusher, to name.Repository, a *artifact.Artifact) error {
	g, each := errgroup.WithContext(ctx)
	g.SetLimit(maxBlobs)
	seen := make(map[string]bool)
	for i, b := range a.Blobs {
		if seen[b.Digest.String()] {
			continue
		}
		seen[b.Digest.String()] = true
		g.Go(func() error { return s.uploadOne(each, out, to, i, b) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return out.Upload(ctx, to, static.NewLayer(a.Config, artifact.ConfigType))
}

func (s *sender) uploadOne(ctx context.Context, out *remote.Pusher, to name.Repository, i int, b artifact.Blob) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := &layer{
		step: step{on: s.on, now: Progress{File: b.Part.Name, State: Pushing, Bytes: b.Size}},
		b:    b,
		open: func() (io.ReadCloser, error) { return s.content(ctx, i, b) },
	}
	var send v1.Layer = l
	if from, ok := s.mounts[b.Digest]; ok {
		send = &remote.MountableLayer{Layer: l, Reference: from.Digest(b.Digest.String())}
	}
	err := out.Upload(ctx, to, send)
	unread := l.begin(nil)
	if err != nil {
		if unread != nil { // the registry has refused an incomplete request; this is why the request was incomplete
			return unread
		}
		return err
	}
	s.mu.Lock()
	s.moved += l.sent
	s.mu.Unlock()
	state := Pushed
	if l.sent == 0 {
		state = Exists
	}
	l.end(state)
	_ = s.hub.cache.setSource(s.who, b.Digest, to) // the record only saves work in later pushes
	return nil
}

// manifest is an OCI manifest.
type manifest []byte

func (m manifest) RawManifest() ([]byte, error)        { return m, nil }
func (m manifest) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// layer is a blob for go-containerregistry. If the registry answers before it has read a request,
// package http may read the request's body even after Upload has returned. Such late reads do not
// count as progress: only the bytes of the present try count.
type layer struct {
	step
	b    artifact.Blob
	open func() (io.ReadCloser, error) // called for each try

	trying  sync.Mutex
	present *reading // nil: no try is under way
	unread  error    // why the content could not be read in the present or the last try
	sent    int64
}

// begin sets the present try. If the argument is nil, the present try ends. In this case, begin
// returns the error of reading the content, if there was one.
func (l *layer) begin(try *reading) (unread error) {
	l.trying.Lock()
	defer l.trying.Unlock()
	if try != nil {
		l.unread = nil
	}
	l.present, l.now.Done = try, 0
	return l.unread
}

// count adds n bytes to the progress, if try is the present try. It keeps the error of a failed read.
func (l *layer) count(try *reading, n int64, err error) {
	l.trying.Lock()
	defer l.trying.Unlock()
	if l.present != try {
		return
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) { // package http closes the body
		l.unread = err
	}
	l.sent += n
	l.add(n)
}

var errCompressed = errors.New("the content of a blob is read by package artifact only")

func (l *layer) Digest() (v1.Hash, error)             { return v1.NewHash(l.b.Digest.String()) }
func (l *layer) DiffID() (v1.Hash, error)             { return v1.Hash{}, errCompressed }
func (l *layer) Uncompressed() (io.ReadCloser, error) { return nil, errCompressed }
func (l *layer) Size() (int64, error)                 { return l.b.Size, nil }
func (l *layer) MediaType() (types.MediaType, error)  { return artifact.FileType, nil }

// Compressed returns the bytes of the blob. It is called again after each failed try.
func (l *layer) Compressed() (io.ReadCloser, error) {
	body, err := l.open()
	if err != nil {
		return nil, err
	}
	try := &reading{body, l}
	_ = l.begin(try)
	return try, nil
}

// reading is the reader of one try to send a blob. It counts the bytes.
type reading struct {
	io.ReadCloser
	l *layer
}

func (r *reading) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.l.count(r, int64(n), err)
	return n, err
}
