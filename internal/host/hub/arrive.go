package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/host/feeder"
	"github.com/forkd/forkd/internal/host/framequeue"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
)

// errWhole means that a snapshot cannot be forked until the whole snapshot is there. PullLazily
// then pulls the whole snapshot first.
var errWhole = errors.New("the registry does not send ranges of blobs, the indexes of its files are too long, or it " +
	"has no memory")

// PullLazily is like Pull, but returns as soon as the snapshot can be forked: when its description,
// its saved state and the indexes of its blobs have arrived. The frames arrive later. The frames
// that a sandbox needs, and the frames in a list of hot frames, come first. If the host, the
// registry or the snapshot makes this impossible, PullLazily pulls the whole snapshot. Store.Info
// tells whether the snapshot is still arriving.
//
// After PullLazily has returned, the rest arrives even if ctx ends. If the source fails, the
// snapshot is listed as failed, and its sandboxes end.
func (h *Hub) PullLazily(ctx context.Context, who, tag string, r Remote, on func(Progress)) (Pulled, error) {
	if h.cfg.Feeder == nil {
		return h.Pull(ctx, who, tag, r, on)
	}
	got, err := h.pullLazily(ctx, who, tag, r, on)
	if unsupported := (*feeder.UnsupportedError)(nil); errors.Is(err, errWhole) || errors.As(err, &unsupported) {
		h.cfg.Log.Info("a snapshot is pulled as a whole", "reference", r.ref.String(), "reason", err)
		return h.Pull(ctx, who, tag, r, on)
	}
	return got, err
}

func (h *Hub) pullLazily(ctx context.Context, who, tag string, r Remote, on func(Progress)) (_ Pulled, err error) {
	leave, err := h.transfers.Wait(ctx, owner.FairShare(who, maxTransfers))
	if err != nil {
		return Pulled{}, err
	}
	a := &lazyPull{}
	defer func() {
		if err != nil {
			a.close()
			leave()
		}
	}()
	o, err := h.find(ctx, r, func(_ *Verdict, err error) error { return err })
	if err != nil {
		return Pulled{}, err
	}
	if got, err := h.present(tag, r, o); err != nil {
		return Pulled{}, err
	} else if got.Artifact != nil {
		leave()
		return got, nil
	}
	if o.Snapshot.DiskOnly() {
		return Pulled{}, errWhole
	}
	tag, err = h.acceptable(tag, o.Snapshot)
	if err == nil {
		err = h.checkRoom(o.Lacking())
	}
	if err != nil {
		return Pulled{}, err
	}
	h.warn(o.Verdict)
	for _, p := range o.has {
		on(p)
	}
	var answered atomic.Bool
	report := func(p Progress) {
		if !answered.Load() { // the client has gone, because PullLazily has answered
			on(p)
		}
	}
	a.pull = &pull{hub: h, from: h.sourcesOf(o), on: report, files: make(blobs)}
	if err := a.pull.try(ctx, who, o); err != nil {
		return Pulled{}, err
	}
	hot := make(chan artifact.Hot, 1)
	go func() {
		_, list := h.findHot(ctx, o.conn, o.Digest())
		hot <- list
	}()
	err = a.prepare(ctx, o)
	a.hot = <-hot // wait even after an error: findHot uses the connection
	if err != nil {
		return Pulled{}, o.conn.failed(err)
	}
	info, err := a.begin(ctx, who, tag, o, report)
	if err != nil {
		return Pulled{}, err
	}
	answered.Store(true)
	go func() {
		defer leave()
		a.finish(who, o)
	}()
	return Pulled{o.Artifact, info, o.Verdict, a.pull.arrived.Load()}, nil
}

// lazyPull is a snapshot that is arriving. It exists as soon as the snapshot's description is
// known.
type lazyPull struct {
	*pull
	served  []*incoming // blobs of the files that the feeder serves
	rest    []artifact.Blob
	hot     artifact.Hot // nil: unknown
	feeder  *feeder.Feeder
	arrival *feeder.Arrival
	staging *store.Staging
	queue   *framequeue.Queue
}

func (a *lazyPull) close() {
	if a.feeder != nil {
		_ = a.feeder.Lose() // fails if the process has exited
		a.feeder.Close()
	}
	for _, in := range a.served {
		in.close()
	}
	if a.pull != nil {
		a.pull.files.close()
	}
}

// prepare fetches the map of the memory and all indexes.
func (a *lazyPull) prepare(ctx context.Context, o *Offer) error {
	var soon []artifact.Blob
	blobs := slices.Concat(o.cached, o.lacks)
	if indexBytes(blobs) > a.hub.indexes { // this process and forkd-feed keep all indexes until everything has arrived
		return errWhole
	}
	for _, b := range blobs {
		switch b.Part.Name {
		case artifact.StatePart: // has been fetched
		case artifact.MapPart:
			soon = append(soon, b)
		case artifact.KernelPart, artifact.InitramfsPart:
			a.rest = append(a.rest, b)
		default:
			in, err := a.newIncoming(ctx, b)
			if err != nil {
				return err
			}
			a.served = append(a.served, in)
		}
	}
	return a.fetchAll(ctx, soon)
}

// indexBytes returns the length of the indexes of blobs, in bytes.
func indexBytes(list []artifact.Blob) (n int64) {
	for _, b := range list {
		n += b.IndexBytes
	}
	return n
}

// newIncoming prepares a blob whose frames will arrive.
func (a *lazyPull) newIncoming(ctx context.Context, b artifact.Blob) (*incoming, error) {
	if f := a.hub.cache.open(b.Digest); f != nil {
		return readIncoming(f, b)
	}
	if b.IndexBytes > maxFetchedIndex {
		return nil, errWhole
	}
	p := make([]byte, b.IndexBytes)
	err := a.from.use(ctx, func(ctx context.Context, c *conn, _ bool) error {
		return c.again(ctx, func() error { return a.fetchIndex(ctx, c, b, p) })
	})
	if err != nil {
		return nil, err
	}
	frames, err := artifact.ParseFrames(p, b)
	if err != nil {
		return nil, err
	}
	f, err := a.hub.cache.create()
	if err != nil {
		return nil, err
	}
	in := &incoming{b: b, f: f, frames: frames, fresh: true}
	if _, err := f.WriteAt(p, b.Size-b.IndexBytes); err != nil {
		in.close()
		return nil, err
	}
	return in, nil
}

// fetchIndex fetches the index of a blob from a repository into p.
func (a *lazyPull) fetchIndex(ctx context.Context, c *conn, b artifact.Blob, p []byte) error {
	x := &fetching{conn: c, b: b, sent: func(n int64) { a.arrived.Add(n) }}
	ctx = context.WithValue(ctx, blobKey{}, true)
	resp, err := c.get(ctx, c.endpoint("blobs", b.Digest.String()), "", b.Size-b.IndexBytes, b.Size)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusPartialContent {
		return errWhole
	}
	return x.read(resp.Body, p)
}

// begin starts the feeder, and makes the snapshot usable.
func (a *lazyPull) begin(ctx context.Context, who, tag string, o *Offer, on func(Progress)) (_ store.Info, err error) {
	var files []feeder.File
	for _, in := range a.served {
		data, err := disklayer.Reopen(in.f) // the process must not be able to write to the blob
		if err != nil {
			return store.Info{}, err
		}
		defer data.Close()
		files = append(files, feeder.File{Blob: in.b, Data: data})
	}
	a.queue = queueOf(a.served, a.hub.cfg.Counts.FrameArrived)
	if err := a.queue.SetHot(a.hot); err != nil {
		a.hub.cfg.Log.Info("a list of hot frames cannot be used", "snapshot", o.Digest(), "reason", err)
	}
	if a.feeder, err = a.hub.cfg.Feeder.Start(files, a.queue.Need); err != nil {
		return store.Info{}, err
	}
	a.queue.Start(a.feeder.Have)
	if a.staging, err = a.hub.cfg.Store.Stage(tag); err != nil {
		return store.Info{}, err
	}
	a.staging.For(who, nil)
	a.arrival = a.feeder.Arrival()
	open := func(part int) (*os.File, error) {
		defer a.arrival.Watch()()
		for i, in := range a.served {
			if in.b.Digest == o.Blobs[part].Digest {
				return disklayer.Reopen(a.feeder.Files[i])
			}
		}
		return nil, fmt.Errorf("%s: the store had it a moment ago: try again", o.Blobs[part].Part.Name)
	}
	room := func() error { return a.hub.checkRoom(0) }
	if err := a.hub.cache.setPulled(a.staging.ID(), o.Digest()); err != nil {
		a.staging.Discard()
		return store.Info{}, err
	}
	info, err := a.staging.Arrive(ctx, o.Snapshot, contents{o.Artifact, a.pull, on}, a.arrival, open, room)
	if err != nil {
		a.staging.Discard()
		a.hub.forgotten(a.hub.cache.forgetPulled(a.staging.ID()))
	}
	return info, err
}

// errDeleted is the cause of the canceled context when a snapshot is deleted while it arrives.
var errDeleted = errors.New("the snapshot was deleted")

// finish fetches the rest, and publishes the snapshot. If the snapshot is deleted before that,
// finish removes everything that has arrived.
func (a *lazyPull) finish(who string, o *Offer) {
	ctx, cancel := context.WithCancelCause(a.hub.cfg.Stopping)
	defer cancel(nil)
	defer a.arrival.End()
	defer a.close()
	go func() {
		select {
		case <-a.arrival.Canceled():
			cancel(errDeleted)
		case <-ctx.Done():
		}
	}()
	a.hub.cfg.Counts.ArrivalBegun()
	result := "arrived"
	defer func() { a.hub.cfg.Counts.ArrivalEnded(result) }()
	err := a.complete(ctx, who)
	switch {
	case err != nil && errors.Is(context.Cause(ctx), errDeleted):
		result = "deleted"
		_ = a.feeder.Lose() // fails if the process has exited
		a.staging.Lose(errDeleted)
		a.hub.cache.forgetFetched(o.Blobs)
		a.hub.cfg.Log.Info("a snapshot was deleted before it had arrived", "snapshot", o.Snapshot.Tag)
	case err == nil:
		if text, err := a.hot.Encode(); err == nil {
			a.hub.keepHot(a.staging.ID(), text)
		}
		a.hub.cache.forgetFetched(o.Blobs)
		a.hub.trim()
		a.hub.cfg.Log.Info("a snapshot has arrived", "snapshot", o.Snapshot.Tag, "bytes", a.arrived.Load())
	case ctx.Err() != nil:
		result = "stopped" // the next daemon ends the sandboxes
	default:
		result = "failed"
		_ = a.feeder.Lose()
		reason := fmt.Errorf("the rest of the snapshot could not be fetched: %w", o.conn.failed(err))
		if bad := (*artifact.Error)(nil); errors.As(err, &bad) { // a damaged blob would make the next pull fail too
			for _, in := range a.served {
				a.hub.cache.remove(in.b.Digest)
			}
		}
		a.staging.Lose(reason)
		a.hub.forgotten(a.hub.cache.forgetPulled(a.staging.ID()))
		a.hub.cfg.Log.Error("a snapshot has not arrived", "snapshot", o.Snapshot.Tag, "reason", reason)
	}
}

func (a *lazyPull) complete(ctx context.Context, who string) error {
	if err := a.hub.paced(ctx, &a.arrived, a.fetchFrames); err != nil {
		return err
	}
	for _, in := range a.served {
		if err := a.settle(in); err != nil {
			return err
		}
	}
	if err := a.feeder.Whole(); err != nil {
		return fmt.Errorf("the process that serves the files has ended: %w", err)
	}
	if err := a.fetchAll(ctx, a.rest); err != nil {
		return err
	}
	leave, err := a.hub.wait(ctx, who)
	if err != nil {
		return err
	}
	defer leave()
	_, err = a.staging.Arrived(ctx)
	return err
}

// settle compares a blob with its digest, and puts it into the cache. All frames of the blob must
// be there.
func (a *lazyPull) settle(in *incoming) error {
	if !in.fresh {
		f, err := disklayer.Reopen(in.f)
		if err == nil {
			a.pull.files.add(in.b.Digest, f)
		}
		return err
	}
	if err := in.check(); err != nil {
		return err
	}
	if err := a.hub.cache.settle(in.f, in.b.Digest); err != nil {
		return err
	}
	in.fresh = false
	f, err := disklayer.Reopen(in.f)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pull.files.add(in.b.Digest, f)
	a.came = append(a.came, in.b.Digest)
	return nil
}

// fetchFrames fetches all frames. Frames that readers wait for come first.
func (a *lazyPull) fetchFrames(ctx context.Context) error {
	ctx = context.WithValue(ctx, blobKey{}, true)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-a.feeder.Ended():
			cancel(errors.New("the process that serves the files has ended"))
		case <-ctx.Done():
		}
	}()
	err := a.queue.Run(ctx, a.hub.quiet, a.fetchRange)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// fetchRange fetches consecutive frames of a blob. If a source fails, fetchRange tries it again for
// mirrorPatience, or for Config.LazyTimeout if there is no other source.
func (a *lazyPull) fetchRange(ctx context.Context, blob, first, end int, came func(frame int)) error {
	return a.from.use(ctx, func(ctx context.Context, c *conn, last bool) error {
		since, patience := time.Now(), a.hub.cfg.LazyTimeout
		if !last {
			patience = min(patience, mirrorPatience)
		}
		for n := 1; ; n++ {
			err := a.fetchOnce(ctx, c, a.served[blob], first, end, func(frame int) {
				first, since, n = frame+1, time.Now(), 0
				came(frame)
			})
			if err == nil {
				return nil
			}
			if c.awaits(err) {
				since = time.Now()
			}
			if !isTemporary(err) || time.Since(since) > patience {
				return err
			}
			if err := c.pause(ctx, max(1, min(n, 4))); err != nil {
				return err
			}
		}
	})
}

// fetchOnce fetches consecutive frames with one request to a repository. It calls came(frame) after
// each frame.
func (a *lazyPull) fetchOnce(ctx context.Context, c *conn, in *incoming, first, end int, came func(frame int)) error {
	start, _ := in.frames.Place(first)
	stop, size := in.frames.Place(end - 1)
	x := &fetching{conn: c, b: in.b, sent: func(n int64) { a.arrived.Add(n) }}
	resp, err := c.get(ctx, c.endpoint("blobs", in.b.Digest.String()), "", start, stop+size)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusPartialContent {
		return x.bad("the registry has sent a range of it, and then no longer does")
	}
	if err := x.checkLength(resp, stop+size-start); err != nil {
		return err
	}
	for i := first; i < end; i++ {
		at, size := in.frames.Place(i)
		p := make([]byte, size) // bounded by artifact.ParseFrames
		if err := x.read(resp.Body, p); err != nil {
			return err
		}
		if err := in.frames.Verify(i, p); err != nil {
			return x.bad("%w", err)
		}
		if _, err := in.f.WriteAt(p, at); err != nil {
			return err
		}
		came(i)
	}
	return nil
}
