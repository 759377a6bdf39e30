// Package hub moves snapshots between the store and other hosts, in archives and through OCI
// registries. It also copies snapshots from one registry to another. Other daemons can pull local
// snapshots from this daemon as from a registry.
//
// An artifact is a snapshot in the form in which it travels: a manifest and a blob for each file. A
// blob is compressed in frames, and its index says where each frame begins. To pack a snapshot is
// to make these blobs. A snapshot is arriving while it can be forked, but some of its frames are
// still in the registry. During this time a forkd-feed process, the feeder, serves its files. The
// frames that the first forks need are hot.
//
// A snapshot from outside is hostile until its digests are verified, and Trust says whether a
// trusted key must have signed it. Its network policy comes from this daemon, never from the
// artifact. The snapshot is published when every byte is verified and on disk. If the daemon or the
// client is killed earlier, only cached blobs are left. Package artifact defines the format of
// artifacts, and package sigstore defines the format of signatures. The callers decide who may move
// a snapshot.
package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/feeder"
	"github.com/forkd/forkd/internal/host/helpervm"
	"github.com/forkd/forkd/internal/host/hotlist"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/sparse"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Limits of a Hub.
const (
	maxMoves     = 2       // maximum number of packings and unpackings at a time; each uses a CPU
	maxTransfers = 4       // maximum number of pushes, pulls and copies at a time
	maxBlobs     = 4       // maximum number of blobs that one push, pull or copy transfers at a time
	maxWaiting   = 4       // maximum number of waiting requests of one client
	cacheBytes   = 8 << 30 // maximum size, in bytes, of the blobs that the cache keeps between requests
)

// LazyTimeout is the default of Config.LazyTimeout.
const LazyTimeout = 2 * time.Minute

// Config configures a Hub. All fields except Trust, Rehearse, Reserve, Certs, Feeder, LazyTimeout,
// Counts and Stopping are required.
type Config struct {
	Store  *store.Store
	Dir    string // directory for cached blobs, on the store's file system
	Memory uint64 // bytes of the host's memory; snapshots of guests with more memory are refused
	Trust  Trust

	// Try returns an error if this host cannot restore a saved state, see vmpool.Trials.
	Try func(ctx context.Context, m snapshot.Machine, disk uint64, state *os.File) error

	// Rehearse lets a saved machine run until its first answer, see helpervm.Rehearser. If it is nil, Push
	// records no hot frames.
	Rehearse func(ctx context.Context, s helpervm.Saved) error

	// Room returns an error if the host has no room for more data on the file system that contains
	// the given file.
	Room    func(memory uint64, disk *os.File) error
	Reserve uint64          // bytes that stay free on the file system of Dir; Room keeps this reserve too
	Certs   string          // directory of certificates of registries, see registry.CertsDir; empty: none
	Feeder  *feeder.Program // nil: PullLazily pulls whole snapshots
	// LazyTimeout is how long a snapshot that is arriving waits for a registry that does not answer;
	// 0: the constant LazyTimeout.
	LazyTimeout time.Duration
	Counts      Counts // may be nil
	Log         *slog.Logger

	Stopping context.Context // its end aborts packings for other daemons; may be nil
}

// Hub moves snapshots. Its methods may be called concurrently.
type Hub struct {
	cfg       Config
	cache     *cache
	place     *gate.Gate
	transfers *gate.Gate
	packings  packings
	attaching sync.Mutex // held while a signature is attached to a snapshot
	hot       hotlist.Lists

	base       http.RoundTripper // transport that all connections to registries use
	tries      int               // maximum number of tries of a request to a registry
	retryWait  time.Duration     // wait before the second try; doubles before each further try
	proofsTime time.Duration     // see proofsTime
	stall      time.Duration     // see wire.stall
	leave      time.Duration     // see wire.leave
	small      int64             // see smallBlob
	roomEvery  int64             // see fetching
	pace       time.Duration     // see leastRate
	answerTime time.Duration     // the constant answerTime, except in tests
	patience   time.Duration     // see conn.patience
	longest    time.Duration     // the constant longest, except in tests

	hotTime time.Duration // the constant hotTime, except in tests
	quiet   time.Duration // see framequeue.Queue.Run
	indexes int64         // maximum bytes of the indexes of a snapshot that is pulled lazily
}

// New returns a Hub. It removes the files that a killed daemon has left unfinished. From then on,
// the Hub removes the blobs of deleted snapshots.
func New(cfg Config) (*Hub, error) {
	if cfg.Stopping == nil {
		cfg.Stopping = context.Background()
	}
	if cfg.Counts == nil {
		cfg.Counts = noCounts{}
	}
	cfg.LazyTimeout = cmp.Or(cfg.LazyTimeout, LazyTimeout)
	c, err := openCache(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open the hub's cache: %w", err)
	}
	queue := gate.Queue{Key: maxWaiting, All: 16 * maxWaiting}
	h := &Hub{
		cfg:        cfg,
		cache:      c,
		place:      gate.NewQueued(maxMoves, queue),
		transfers:  gate.NewQueued(maxTransfers, queue),
		hot:        hotlist.Lists{Dir: c.path("hot", "")},
		base:       newBase(),
		tries:      4,
		retryWait:  time.Second,
		proofsTime: proofsTime,
		stall:      time.Minute,
		leave:      mirrorPatience,
		small:      smallBlob,
		roomEvery:  4 << 20, // the blobs that arrive at the same time take at most about 64 MiB of the reserve
		pace:       10 * time.Minute,
		answerTime: answerTime,
		patience:   30 * time.Minute,
		longest:    longest,

		hotTime: hotTime,
		quiet:   2 * time.Second,
		indexes: 4 * maxFetchedIndex,
	}
	h.forgotten(errors.Join(h.cache.forgetOthers(cfg.Store.HasPart), h.detachOthers()))
	cfg.Store.OnGone(func(gone *snapshot.Manifest) {
		h.packings.forget(gone.ID) // the snapshot may have been encrypted, and is then no longer served
		h.forgotten(errors.Join(h.cache.forgetParts(gone, cfg.Store.HasPart), os.RemoveAll(h.cache.attachedTo(gone.ID)),
			h.cache.forgetPulled(gone.ID), h.hot.Forget(gone.ID)))
	})
	return h, nil
}

// wait waits for a place to compress or decompress a snapshot for a client. The caller frees the
// place by calling leave.
func (h *Hub) wait(ctx context.Context, who string) (leave func(), err error) {
	return h.place.Wait(ctx, owner.FairShare(who, maxMoves))
}

// forgotten logs that blobs of deleted snapshots could not be removed. Such blobs contain memory
// and disks of deleted guests. The next start of the daemon tries again.
func (h *Hub) forgotten(err error) {
	if err != nil {
		h.cfg.Log.Warn("blobs of deleted snapshots are left in the hub's cache", "error", err)
	}
}

func (h *Hub) trim() {
	if err := h.cache.trim(cacheBytes); err != nil {
		h.cfg.Log.Warn("old blobs are left in the hub's cache", "error", err)
	}
}

// checkRoom returns a roomError if the disk has no room for n more bytes in addition to the
// daemon's reserve.
func (h *Hub) checkRoom(n int64) error {
	if err := h.cfg.Room(0, h.cache.dir); err != nil {
		return roomError{err}
	}
	free, err := h.cfg.Store.Room()
	if err != nil {
		return roomError{err}
	}
	if rest := free - min(free, h.cfg.Reserve); n > 0 && uint64(n) > rest {
		return roomError{fmt.Errorf("%d MiB are needed, and %d MiB are free in %s, without the daemon's reserve of %d MiB: %w",
			n>>20, rest>>20, h.cfg.Dir, h.cfg.Reserve>>20, unix.ENOSPC)}
	}
	return nil
}

// roomError means that this host has no room.
type roomError struct{ error }

func (e roomError) Unwrap() error { return e.error }

// Package is a compressed snapshot. Close frees it.
type Package struct {
	*artifact.Artifact
	files blobs
	hot   []byte // list of hot frames; may be nil
}

// Close closes the blobs.
func (p *Package) Close() { p.files.close() }

// Pack compresses a snapshot for a client.
func (h *Hub) Pack(ctx context.Context, who, tag string) (_ *Package, err error) {
	leave, err := h.wait(ctx, who)
	if err != nil {
		return nil, err
	}
	defer leave()
	defer h.trim() // the Package keeps its blobs open, so trim may remove them from the cache
	x, err := h.cfg.Store.Export(ctx, tag)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	p := &Package{files: make(blobs), hot: h.hot.Of(x.Manifest.ID)}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	var list []artifact.Blob
	for i, part := range artifact.Parts(x.Manifest) {
		b, f, err := h.encode(ctx, part, x.Files[i])
		if err != nil {
			return nil, err
		}
		p.files.add(b.Digest, f)
		list = append(list, b)
	}
	p.Artifact, err = artifact.New(artifact.Portable(x.Manifest), list)
	return p, err
}

// encode returns the blob of a file. It takes the blob from the cache if a snapshot with the same
// file was packed before.
func (h *Hub) encode(ctx context.Context, part artifact.Part, file *os.File) (artifact.Blob, *os.File, error) {
	if b, f := h.cache.made(part); f != nil {
		return b, f, nil
	}
	st, err := file.Stat()
	if err != nil {
		return artifact.Blob{}, nil, err
	}
	// Compressed data is hardly longer than the file's data.
	if err := h.checkRoom(st.Sys().(*syscall.Stat_t).Blocks * 512); err != nil {
		return artifact.Blob{}, nil, err
	}
	e, err := artifact.NewEncoder()
	if err != nil {
		return artifact.Blob{}, nil, err
	}
	var b artifact.Blob
	f, err := h.cache.add(func(tmp *os.File) (digest.Digest, error) {
		b, err = e.Encode(ctx, tmp, part, file, sparse.Finder(file))
		return b.Digest, err
	})
	if err != nil {
		return artifact.Blob{}, nil, err
	}
	if err := h.cache.remember(b); err != nil {
		return b, nil, errors.Join(err, f.Close())
	}
	return b, f, nil
}

// WriteArchive writes a package as the tar archive of an OCI image layout.
func (p *Package) WriteArchive(w io.Writer) error {
	return artifact.WriteLayout(w, p.Artifact, p.Snapshot.Tag, p.hot, func(i int) (io.ReadCloser, error) {
		b := p.Blobs[i]
		return io.NopCloser(io.NewSectionReader(p.files[b.Digest], 0, b.Size)), nil
	})
}

// Arrival is a snapshot from outside whose blobs are in the cache. Close removes these blobs.
type Arrival struct {
	*artifact.Artifact
	Verdict Verdict
	hub     *Hub
	files   blobs
	hot     []byte          // list of hot frames; may be nil
	came    []digest.Digest // blobs that the cache did not have before
}

// Close closes the blobs and removes them from the cache. Either the store has their content, or
// the client will send them again.
func (a *Arrival) Close() {
	a.files.close()
	for _, d := range a.came {
		a.hub.cache.remove(d)
	}
	a.hub.trim()
}

// Receive reads an archive and compares its blobs with their digests. If the policy requires a
// signature, the bundle must be a trusted key's signature for the digest of the manifest. In that
// case, Receive does not read the archive if there is no bundle.
func (h *Hub) Receive(ctx context.Context, archive io.Reader, policy Policy, bundle []byte) (_ *Arrival, err error) {
	var proofs []proof
	if len(bundle) > 0 {
		proofs = []proof{{referrer: referrer{file: bundle}}}
	} else if cmp.Or(policy, h.cfg.Trust.policy(ArchiveSource)) == Require {
		return nil, &TrustError{Unsigned, ArchiveSource, "the archive came without a signature"}
	}
	a := &Arrival{hub: h, files: make(blobs)}
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	manifest, hot, err := artifact.ReadLayout(archive, func(d digest.Digest, size int64, r io.Reader) error {
		if err := errors.Join(ctx.Err(), h.checkRoom(size)); err != nil {
			return err
		}
		if f := h.cache.open(d); f != nil {
			a.files.add(d, f)
			return receive(io.Discard, d, size, r)
		}
		f, err := h.cache.put(d, size, r)
		if err == nil {
			a.files.add(d, f)
			a.came = append(a.came, d)
		}
		return err
	})
	if err != nil {
		return a, err
	}
	a.Verdict, err = h.judge(policy, ArchiveSource, manifest, func() ([]proof, error) { return proofs, nil })
	if err != nil {
		return a, err
	}
	h.warn(a.Verdict)
	a.hot = hotlist.Read(a.files[hot])
	a.Artifact, err = a.files.load(manifest)
	return a, err
}

// Unpack publishes a received snapshot for the client with the given name, who becomes the owner.
// The snapshot gets the given tag or, if this is empty, the tag of the packed snapshot.
func (h *Hub) Unpack(ctx context.Context, who, tag string, a *Arrival, on func(Progress)) (store.Info, error) {
	if _, err := h.acceptable(tag, a.Snapshot); err != nil {
		return store.Info{}, err
	}
	if err := h.try(ctx, who, a.Artifact, a); err != nil {
		return store.Info{}, err
	}
	return h.publish(ctx, who, tag, a.Artifact, a, on)
}

// open implements source.
func (a *Arrival) open(_ context.Context, b artifact.Blob) (*os.File, error) {
	return a.files.of(b.Digest)
}

// CheckTag returns an error if a new snapshot cannot have the tag.
func (h *Hub) CheckTag(tag string) error {
	if err := snapshot.CheckTag(tag); err != nil {
		return &invalid.Error{Field: "tag", Reason: err.Error()}
	}
	if snapshot.IsStepTag(tag) {
		return invalid.Errorf("tag", "%q: such tags are for the steps of builds", tag)
	}
	i, err := h.cfg.Store.Info(tag)
	if err == nil && i.Damage == "" {
		return &store.ExistsError{Tag: tag, InFlight: i.Writing}
	}
	return nil
}

// source provides the blobs of an artifact from an archive or from a registry.
type source interface {
	// open returns a blob. Its bytes need not be verified.
	open(ctx context.Context, b artifact.Blob) (*os.File, error)
}

// publish waits for a place, and then makes a snapshot from an artifact.
func (h *Hub) publish(ctx context.Context, who, tag string, a *artifact.Artifact, from source, on func(Progress)) (
	store.Info, error) {
	leave, err := h.wait(ctx, who)
	if err != nil {
		return store.Info{}, err
	}
	defer leave()
	if tag, err = h.acceptable(tag, a.Snapshot); err != nil {
		return store.Info{}, err
	}
	g, err := h.cfg.Store.Stage(tag)
	if err != nil {
		return store.Info{}, err
	}
	defer g.Discard()
	g.For(who, nil)
	g.SetStep("unpacking")
	room := func() error { return h.checkRoom(0) }
	err = h.cache.setPulled(g.ID(), a.Digest())
	var info store.Info
	if err == nil {
		m := *a.Snapshot
		if p, ok := from.(*pull); ok {
			m.Transient = p.transient
		}
		info, err = g.Import(ctx, &m, contents{a, from, on}, room)
	}
	if err != nil {
		h.forgotten(h.cache.forgetPulled(g.ID()))
	} else if arrival, ok := from.(*Arrival); ok {
		h.keepHot(g.ID(), arrival.hot)
	}
	return info, err
}

// acceptable returns the tag of a new snapshot. This is the given tag or, if that tag is empty, the
// tag of the packed snapshot. acceptable returns an error if this host cannot run the snapshot, or
// if the snapshot cannot have the tag.
func (h *Hub) acceptable(tag string, m *snapshot.Manifest) (string, error) {
	tag = cmp.Or(tag, m.Tag)
	return tag, cmp.Or(h.compatible(m), h.CheckTag(tag))
}

// compatible returns an error if the manifest shows that this host cannot run the snapshot. The
// method try compares the features of the CPU.
func (h *Hub) compatible(m *snapshot.Manifest) error {
	if err := vm.CheckTemplate(m.Machine.Template); err != nil {
		return refuse("%w", err)
	}
	if m.Machine.MemoryBytes > h.cfg.Memory {
		return refuse("the guest has %d MiB of memory, and the host has %d", m.Machine.MemoryBytes>>20, h.cfg.Memory>>20)
	}
	return nil
}

// refuse returns the error for a snapshot that this host cannot run.
func refuse(format string, args ...any) error {
	return &artifact.Error{Err: fmt.Errorf("this host cannot run it: "+format, args...)}
}

// contents are the files of an artifact.
type contents struct {
	*artifact.Artifact
	from source
	on   func(Progress)
}

// Decode implements store.Contents.
func (c contents) Decode(ctx context.Context, part int, write func(uint64, []byte) error) error {
	b := c.Blobs[part]
	f, err := c.from.open(ctx, b)
	if err != nil {
		return err
	}
	r, err := artifact.Open(f, b)
	if err != nil {
		return err
	}
	if err := r.Decode(ctx, write); err != nil {
		return err
	}
	c.on(Progress{File: b.Part.Name, State: Unpacked, Bytes: b.Size})
	return nil
}

// Dir returns the directory of the cache in a state directory.
func Dir(stateDir string) string { return filepath.Join(stateDir, "hub") }
