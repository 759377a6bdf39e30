package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
)

// acceptedManifests lists the media types of manifests that a registry may send. The list includes
// the media types of container images, so that the error for a container image can say that it is
// one.
const acceptedManifests = oci.MediaTypeImageManifest + ", " + oci.MediaTypeImageIndex +
	", application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json"

// Offer is a snapshot in a registry. Only its manifest and its configuration were fetched and checked.
type Offer struct {
	*artifact.Artifact
	Verdict Verdict
	conn    *conn
	lacks   []artifact.Blob // blobs of files that neither the store nor the cache has, each once
	cached  []artifact.Blob // blobs in the cache, of files that the store lacks
	has     []Progress      // files that need not be fetched

	problem error // see Problem
}

// Find fetches the description of a snapshot in a registry. If Pull would refuse the snapshot
// because of its signatures, the Offer has a problem in its Verdict. If there is no such problem,
// Find also tries the saved state on this host, see Problem.
func (h *Hub) Find(ctx context.Context, who string, r Remote) (*Offer, error) {
	leave, err := h.transfers.Wait(ctx, owner.FairShare(who, maxTransfers))
	if err != nil {
		return nil, err
	}
	defer leave()
	o, err := h.find(ctx, r, func(v *Verdict, err error) error {
		if untrusted := (*TrustError)(nil); errors.As(err, &untrusted) {
			v.Problem, err = err, nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if o.problem = h.compatible(o.Snapshot); o.problem != nil || o.Verdict.Problem != nil {
		return o, nil
	}
	p := &pull{hub: h, from: h.sourcesOf(o), on: func(Progress) {}, files: make(blobs)}
	defer p.forget()
	err = p.try(ctx, who, o)
	if bad := (*artifact.Error)(nil); errors.As(err, &bad) {
		o.problem, err = err, nil
	}
	return o, err
}

// find does the work of Find. It calls end(verdict, err) with the result of the check of
// signatures, and continues if end returns nil.
func (h *Hub) find(ctx context.Context, r Remote, end func(*Verdict, error) error) (*Offer, error) {
	c, err := h.dial(ctx, r, r.ref.Context().Scope(transport.PullScope))
	if err != nil {
		return nil, err
	}
	o := &Offer{conn: c}
	check := func(d digest.Digest) (err error) {
		proofs := func() ([]proof, error) { return c.proofs(ctx, d) }
		o.Verdict, err = h.judge(r.trust, r.source(), d, proofs)
		return end(&o.Verdict, err)
	}
	if err := c.again(ctx, func() error { o.Artifact, err = c.describe(ctx, check); return err }); err != nil {
		return nil, c.failed(err)
	}
	seen := make(map[digest.Digest]bool)
	for i, shared := range h.cfg.Store.Shared(o.Snapshot) {
		b := o.Blobs[i]
		switch {
		case shared:
			o.has = append(o.has, Progress{File: b.Part.Name, State: Shared, Bytes: b.Size})
		case h.cache.has(b.Digest):
			o.has = append(o.has, Progress{File: b.Part.Name, State: Cached, Bytes: b.Size})
			o.cached = append(o.cached, b)
		case !seen[b.Digest]:
			seen[b.Digest] = true
			o.lacks = append(o.lacks, b)
		}
	}
	return o, nil
}

// Lacking returns how many bytes Pull would fetch.
func (o *Offer) Lacking() (n int64) {
	for _, b := range o.lacks {
		n += b.Size
	}
	return n
}

// Problem returns an error if this host cannot run the snapshot. The features of the CPU were compared only if Verdict
// has no problem.
func (o *Offer) Problem() error { return o.problem }

// describe fetches the manifest and the configuration of an artifact. It calls check with the digest of the
// manifest before it fetches or decodes anything else.
func (c *conn) describe(ctx context.Context, check func(digest.Digest) error) (*artifact.Artifact, error) {
	manifest, err := c.manifest(ctx)
	if err != nil {
		return nil, err
	}
	d, err := artifact.ConfigOf(manifest)
	if err != nil {
		return nil, err
	}
	if err := check(digest.FromBytes(manifest)); err != nil {
		return nil, err
	}
	config, err := c.document(ctx, "blobs", d.Digest.String(), "", d.Size) // bounded by ConfigOf
	if err != nil {
		return nil, err
	}
	return artifact.Parse(manifest, config)
}

// document returns the content of a manifest or of a small blob, of at most limit bytes.
func (c *conn) document(ctx context.Context, kind, id, accept string, limit int64) ([]byte, error) {
	p, _, err := c.documentAt(ctx, c.endpoint(kind, id), accept, limit)
	return p, err
}

// documentAt is like document, but requests the document at a URL. It also returns the header of
// the answer.
func (c *conn) documentAt(ctx context.Context, u url.URL, accept string, limit int64) ([]byte, http.Header, error) {
	ctx = context.WithValue(ctx, blobKey{}, true) // this method limits the size itself
	resp, err := c.get(ctx, u, accept, 0, 0)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err == nil && int64(len(p)) > limit {
		err = &artifact.Error{Err: fmt.Errorf("registry %s: %.200s has more than %d bytes", c.Registry(), u.Path, limit)}
	}
	return p, resp.Header, err
}

// Pulled is the result of Pull.
type Pulled struct {
	*artifact.Artifact
	store.Info
	Verdict Verdict
	Moved   int64 // number of bytes that were fetched
}

// Pull makes a snapshot from a snapshot in a registry, with the given tag or, if tag is empty, with
// the tag of the pushed snapshot. It checks the signatures first, and fetches only blobs that the
// store lacks. After an error, complete blobs stay in the cache for the next try, and nothing else
// stays. Pull reports its progress by calling on(progress), possibly concurrently.
func (h *Hub) Pull(ctx context.Context, who, tag string, r Remote, on func(Progress)) (Pulled, error) {
	leave, err := h.transfers.Wait(ctx, owner.FairShare(who, maxTransfers))
	if err != nil {
		return Pulled{}, err
	}
	defer leave()
	o, err := h.find(ctx, r, func(_ *Verdict, err error) error { return err })
	if err != nil {
		return Pulled{}, err
	}
	if got, err := h.present(tag, r, o); err != nil || got.Artifact != nil {
		return got, err
	}
	if _, err := h.acceptable(tag, o.Snapshot); err != nil { // check before any layer is fetched
		return Pulled{}, err
	}
	if err := h.checkRoom(o.Lacking()); err != nil {
		return Pulled{}, err
	}
	h.warn(o.Verdict)
	for _, p := range o.has {
		on(p)
	}
	p := &pull{hub: h, from: h.sourcesOf(o), on: on, files: make(blobs), transient: r.transient}
	defer h.trim()
	defer p.files.close()
	for _, b := range o.cached { // open these before any blob arrives, because the cache may drop them after that
		if f := h.cache.open(b.Digest); f != nil {
			p.files.add(b.Digest, f)
		}
	}
	if err := p.try(ctx, who, o); err != nil {
		return Pulled{}, err
	}
	for _, list := range [][]artifact.Blob{o.cached, o.lacks} {
		if err := p.fetchAll(ctx, list); err != nil {
			return Pulled{}, o.conn.failed(err)
		}
	}
	info, err := h.publish(ctx, who, tag, o.Artifact, p, on)
	var bad *artifact.Error
	switch {
	case err == nil: // the store has the content
		h.cache.forgetFetched(o.Blobs)
	case errors.As(err, &bad): // remove the blobs, because a damaged one would make the next pull fail too
		for _, b := range o.Blobs {
			h.cache.remove(b.Digest)
		}
	}
	return Pulled{o.Artifact, info, o.Verdict, p.moved}, err
}

// try fetches the saved state, and restores it on trial. A saved state that the store already has is not tried again.
func (p *pull) try(ctx context.Context, who string, o *Offer) error {
	if o.Snapshot.DiskOnly() {
		return nil
	}
	state := stateOf(o.Artifact)
	if err := p.fetchAll(ctx, []artifact.Blob{state}); err != nil {
		return err
	}
	err := p.hub.try(ctx, who, o.Artifact, p)
	if bad := (*artifact.Error)(nil); errors.As(err, &bad) {
		p.hub.cache.remove(state.Digest) // a damaged state would make the next pull fail too
	}
	return err
}

// pull is the source of the blobs of a snapshot in a registry.
type pull struct {
	hub  *Hub
	from *sources
	on   func(Progress)

	transient bool // see Remote.Transient

	arrived atomic.Int64 // bytes

	mu    sync.Mutex
	files blobs
	came  []digest.Digest // blobs that the cache did not have before
	moved int64
}

// leastRate is the minimum mean rate of a pull or a copy, in bytes per second, over each period of
// Hub.pace. A slower transfer can hold its place and its disk space for days.
const leastRate = 64 << 10

// longest is the maximum time of a pull or a copy. In practice, only copies of very large snapshots
// reach it, because a pull needs room on the disk. The next try continues with the remaining blobs.
const longest = 24 * time.Hour

// paced calls run(ctx). It cancels this context if too few bytes arrive, or if the call takes
// longer than Hub.longest. In these cases paced returns errSlow or errLong.
func (h *Hub) paced(ctx context.Context, arrived *atomic.Int64, run func(context.Context) error) error {
	ctx, stop := context.WithTimeoutCause(ctx, h.longest, errLong)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go h.watch(ctx, arrived, cancel)
	err := run(ctx)
	if cause := context.Cause(ctx); err != nil && (errors.Is(cause, errSlow) || errors.Is(cause, errLong)) {
		return cause
	}
	return err
}

// watch cancels a transfer that is too slow. It returns when ctx ends.
func (h *Hub) watch(ctx context.Context, arrived *atomic.Int64, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(h.pace)
	defer tick.Stop()
	least := int64(leastRate * h.pace.Seconds())
	for before := int64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := arrived.Load()
		if now-before < least {
			cancel(errSlow)
			return
		}
		before = now
	}
}

// fetchAll fetches blobs, several at a time.
func (p *pull) fetchAll(ctx context.Context, list []artifact.Blob) error {
	return p.hub.paced(ctx, &p.arrived, func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(maxBlobs)
		for _, b := range list {
			g.Go(func() error {
				_, err := p.open(ctx, b)
				return err
			})
		}
		return g.Wait()
	})
}

// open implements source. It fetches the blob if the cache does not have it.
func (p *pull) open(ctx context.Context, b artifact.Blob) (*os.File, error) {
	p.mu.Lock()
	f := p.files[b.Digest]
	p.mu.Unlock()
	if f != nil {
		return f, nil
	}
	if f = p.hub.cache.open(b.Digest); f == nil {
		var err error
		if f, err = p.fetch(ctx, b); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.files.add(b.Digest, f)
	return p.files.of(b.Digest)
}

// forget closes the blobs, and removes the fetched blobs from the cache.
func (p *pull) forget() {
	p.files.close()
	for _, d := range p.came {
		p.hub.cache.remove(d)
	}
}

// fetch adds a blob of the registry to the cache.
func (p *pull) fetch(ctx context.Context, b artifact.Blob) (*os.File, error) {
	if err := p.hub.checkRoom(b.Size); err != nil {
		return nil, err
	}
	s := &step{on: p.on, now: Progress{File: b.Part.Name, State: Pulling, Bytes: b.Size}}
	f, err := p.hub.cache.add(func(tmp *os.File) (digest.Digest, error) {
		err := p.from.use(ctx, func(ctx context.Context, c *conn, _ bool) error {
			if err := restart(tmp); err != nil {
				return err
			}
			x := &fetching{conn: c, b: b, out: tmp, sent: func(n int64) {
				p.arrived.Add(n)
				s.add(n)
			}, room: func() error { return p.hub.checkRoom(0) }}
			return x.run(ctx)
		})
		p.mu.Lock()
		defer p.mu.Unlock()
		p.moved += s.now.Done
		return b.Digest, err
	})
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.came = append(p.came, b.Digest)
	p.mu.Unlock()
	s.end(Fetched)
	return f, nil
}
