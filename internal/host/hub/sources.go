package hub

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/host/invalid"
)

// MaxMirrors is the maximum number of mirrors of a pull.
const MaxMirrors = 4

// mirrorPatience is how long a pull waits for a source that fails or is slow, if there is another
// source.
const mirrorPatience = 10 * time.Second

// ParseMirror parses REGISTRY/NAME, the repository of a mirror. A mirror has no tag, because its
// blobs are found by their digests. Errors name field, the request's field that contains the
// repository.
func ParseMirror(field, repository string) (Remote, error) {
	repo, err := name.NewRepository(repository, name.StrictValidation)
	if err != nil || !repoPattern.MatchString(repo.RepositoryStr()) {
		return Remote{}, invalid.Errorf(field, "%.200q: want REGISTRY/NAME without a tag, such as ghcr.io/owner/name",
			repository)
	}
	return Remote{ref: repo.Tag(name.DefaultTag), field: field}, nil // only the repository is used
}

// Or returns r with mirrors. If the repository of r fails during a pull, the blobs come from the
// mirrors.
func (r Remote) Or(mirrors ...Remote) Remote { r.mirrors = mirrors; return r }

// sources are the repositories with the blobs of a snapshot. A blob has the same digest everywhere,
// so any of the repositories can send it.
type sources struct {
	hub *Hub

	mu      sync.Mutex
	now     *conn    // the repository that is used
	mirrors []Remote // repositories that were not used yet, best first
}

func (h *Hub) sourcesOf(o *Offer) *sources {
	return &sources{hub: h, now: o.conn, mirrors: o.conn.mirrors}
}

// use(ctx, f) calls f with the connection to a repository, and with a context for requests to it.
// If the repository fails or is slow, f is called with the next mirror, and the failed repository
// is not tried again. If last is true, there is no further mirror, so even a slow repository is
// used.
func (s *sources) use(ctx context.Context, f func(ctx context.Context, c *conn, last bool) error) error {
	for {
		s.mu.Lock()
		c, last := s.now, len(s.mirrors) == 0
		s.mu.Unlock()
		err := f(hurried(ctx, last), c, last)
		if err == nil || errors.Is(err, errWhole) {
			return err
		}
		if err = c.failed(err); ctx.Err() != nil || !isOfSource(err) || !s.leave(ctx, c, err) {
			return err
		}
	}
}

// hurried returns a context for requests to a source.
func hurried(ctx context.Context, last bool) context.Context {
	if last {
		return ctx
	}
	return context.WithValue(ctx, mirrorKey{}, true)
}

// isOfSource reports whether err may be the fault of one source, so that another source may
// succeed.
func isOfSource(err error) bool {
	return errors.As(err, new(*RegistryError)) || errors.As(err, new(*artifact.Error))
}

// leave replaces a connection that has failed, for all callers of use. It returns false if there is
// no further mirror.
func (s *sources) leave(ctx context.Context, failed *conn, reason error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.now == failed && len(s.mirrors) > 0 {
		next := s.mirrors[0]
		s.mirrors = s.mirrors[1:]
		c, err := s.hub.dial(hurried(ctx, len(s.mirrors) == 0), next, next.ref.Context().Scope(transport.PullScope))
		if err != nil {
			s.hub.cfg.Log.Warn("a mirror cannot be used", "mirror", next.Registry(), "reason", err)
			continue
		}
		s.hub.cfg.Log.Warn("a pull goes on from a mirror", "mirror", next.Registry(), "reason", reason)
		s.now = c
	}
	return s.now != failed
}

// restart empties a file, so that a blob can be fetched again.
func restart(f *os.File) error {
	_, err := f.Seek(0, 0)
	return errors.Join(f.Truncate(0), err)
}
