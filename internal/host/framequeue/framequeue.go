// Package framequeue decides in which order the frames of a snapshot are fetched from a registry. A
// blob is a compressed file of the snapshot, and a frame is a part of a blob that can be
// decompressed on its own. Readers are the processes that read the snapshot before all frames have
// arrived; forkd-feed, the feeder, decompresses frames for them.
//
// First come the frames that readers wait for, and the hot frames: those that the first forks of
// the snapshot need. All other frames follow in the background. The package fetches nothing itself.
package framequeue

import (
	"context"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/proto/feedproto"
)

// Blob describes a blob whose frames are in the queue.
type Blob struct {
	Digest   digest.Digest
	Frames   *artifact.Frameset
	Complete bool // all frames have arrived already
}

// blob is a blob whose frames arrive in any order.
type blob struct {
	Blob
	have []bool // frames that have arrived or are being fetched; nil if the blob is complete
	left int    // number of the first frame that the background has not fetched
}

// size returns the size of the frames first to end-1, in bytes.
func (b *blob) size(first, end int) (n int64) {
	for i := first; i < end; i++ {
		_, bytes := b.Frames.Place(i)
		n += bytes
	}
	return n
}

// Queue decides which frames are fetched next. Its methods may be called concurrently.
type Queue struct {
	blobs []*blob
	count func(awaited bool, bytes int64)

	mu      sync.Mutex
	answer  func(feedproto.Frame) error // tells the feeder that a frame has arrived; nil before Start
	waiting map[feedproto.Frame]bool    // frames that a reader waits for
	came    map[feedproto.Frame]bool    // frames that have arrived
	todo    []feedproto.Frame           // needed frames that nothing fetches yet
	last    time.Time                   // when a reader last needed a frame that was missing
	hot     []hotRun                    // see SetHot; some of their frames may have arrived
	wake    chan struct{}               // has a value if todo may have frames
}

// New returns a Queue. A frame names its blob by the index in blobs. When a frame has arrived, the
// Queue calls count with the frame's size, and with true if a reader waited for the frame. The
// function count must not block.
func New(blobs []Blob, count func(awaited bool, bytes int64)) *Queue {
	q := &Queue{count: count, waiting: make(map[feedproto.Frame]bool), came: make(map[feedproto.Frame]bool),
		last: time.Now(), wake: make(chan struct{}, 1)}
	for _, b := range blobs {
		in := &blob{Blob: b}
		if !b.Complete {
			in.have = make([]bool, b.Frames.Len())
		}
		q.blobs = append(q.blobs, in)
	}
	return q
}

// Start sets the function that tells the feeder about arrived frames.
func (q *Queue) Start(answer func(feedproto.Frame) error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.answer = answer
}

// Exists reports whether a frame exists. The feeder asks for frames, but is not trusted, because it
// decodes data from a registry.
func (q *Queue) Exists(f feedproto.Frame) bool {
	return int(f.File) < len(q.blobs) && int(f.Frame) < q.blobs[f.File].Frames.Len()
}

// Need records that a reader waits for a frame.
func (q *Queue) Need(f feedproto.Frame) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.Exists(f) || q.waiting[f] {
		return
	}
	in := q.blobs[f.File]
	if in.have == nil || q.came[f] {
		if q.answer != nil {
			_ = q.answer(f) // fails if the process has exited
		}
		return
	}
	q.waiting[f] = true
	q.last = time.Now()
	if !in.have[f.Frame] {
		in.have[f.Frame] = true
		q.todo = append(q.todo, f)
		q.signal()
	}
}

func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// arrived records that a frame is there.
func (q *Queue) arrived(f feedproto.Frame) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.came[f] = true
	_, bytes := q.blobs[f.File].Frames.Place(int(f.Frame))
	q.count(q.waiting[f], bytes)
	if q.waiting[f] {
		delete(q.waiting, f)
		_ = q.answer(f) // fails if the process has exited
	}
}

// take returns the next needed frame.
func (q *Queue) take() (f feedproto.Frame, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.todo) == 0 {
		return f, false
	}
	f, q.todo = q.todo[0], q.todo[1:]
	if len(q.todo) > 0 {
		q.signal()
	}
	return f, true
}

// The background chooses the size of each request so that its frames arrive within runTime. A
// longer request delays a reader that needs the last frame of the request, because the reader must
// wait for all of its frames.
const (
	runTime  = time.Second / 4
	firstRun = 128 << 10 // size of the first request, in bytes
	mostRun  = 1 << 20   // maximum size of a request, in bytes
)

// nextRun returns the size of the background's next request, in bytes. The last request had the given
// size, and its frames arrived in the given time.
func nextRun(size int64, took time.Duration) int64 {
	perSecond := float64(size) / max(took, time.Microsecond).Seconds()
	return int64(min(max(1, perSecond*runTime.Seconds()), mostRun))
}

// takeRun returns the next missing frames of a file for the background. They have about the given number
// of bytes, and are at least one frame.
func (q *Queue) takeRun(size int64) (file, first, end int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for n, in := range q.blobs {
		for in.left < len(in.have) && in.have[in.left] {
			in.left++
		}
		if in.left < len(in.have) {
			first := in.left
			in.left = in.takeLocked(first, len(in.have), size)
			return n, first, in.left, true
		}
	}
	return 0, 0, 0, false
}

// takeLocked takes consecutive missing frames, beginning with the frame first. It stops before a
// frame that is present, before the frame with the number limit, or when the frames have at least
// the given number of bytes. It returns the number of the next frame. Preconditions: queue.mu is
// held, and the frame first is missing.
func (in *blob) takeLocked(first, limit int, bytes int64) (end int) {
	size := int64(0)
	for end = first; end < limit && !in.have[end] && size < bytes; end++ {
		_, n := in.Frames.Place(end)
		size += n
		in.have[end] = true
	}
	return end
}

// workers is the number of concurrent requests for needed and hot frames. One worker fetches no hot
// frames, so that needed frames do not wait for them.
const workers = 4

// How long the background waits, in multiples of the parameter quiet of Run.
const (
	firstLull, firstMost = 3, 30 // before its first request, while the first children start
	lull, most           = 1, 3  // before each other request
)

// Fetcher fetches the frames first to end-1 of a blob. It calls came with the number of each frame
// that has arrived. The parameter blob is the index of the blob.
type Fetcher func(ctx context.Context, blob, first, end int, came func(frame int)) error

// Run fetches all frames by calling fetch: first hot frames and frames that readers need, then all
// other frames in the background. Before each request, the background waits until all hot frames
// were requested, and no reader has needed a frame for lull*quiet. The background never waits
// longer than most*quiet. Only before its first request, the longer times firstLull and firstMost
// apply.
func (q *Queue) Run(ctx context.Context, quiet time.Duration, fetch Fetcher) error {
	g, ctx := errgroup.WithContext(ctx)
	done := make(chan struct{}) // closed when the background has fetched all that was left
	g.Go(func() error {
		defer close(done)
		size := int64(firstRun)
		err := q.calm(ctx, firstLull*quiet, firstMost*quiet)
		for ; err == nil; err = q.calm(ctx, lull*quiet, most*quiet) {
			file, first, end, ok := q.takeRun(size)
			if !ok {
				return nil
			}
			begin := time.Now()
			if err := q.fetch(ctx, fetch, file, first, end); err != nil {
				return err
			}
			size = nextRun(q.blobs[file].size(first, end), time.Since(begin))
		}
		return err
	})
	for n := range workers {
		g.Go(func() error { return q.work(ctx, n > 0, done, fetch) })
	}
	return g.Wait()
}

// work fetches needed frames and, if hot is set, hot frames, until done is closed.
func (q *Queue) work(ctx context.Context, hot bool, done <-chan struct{}, fetch Fetcher) error {
	for {
		f, ok := q.take()
		file, first, end := int(f.File), int(f.Frame), int(f.Frame)+1
		if !ok && hot {
			file, first, end, ok = q.takeHot()
		}
		if ok {
			if err := q.fetch(ctx, fetch, file, first, end); err != nil {
				return err
			}
			continue
		}
		select {
		case <-q.wake:
		case <-done:
			return q.drain(ctx, fetch)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// drain fetches the needed frames that remain when the background has finished.
func (q *Queue) drain(ctx context.Context, fetch Fetcher) error {
	for f, ok := q.take(); ok; f, ok = q.take() {
		if err := q.fetch(ctx, fetch, int(f.File), int(f.Frame), int(f.Frame)+1); err != nil {
			return err
		}
	}
	return nil
}

// fetch fetches the frames first to end-1 of a file by calling run.
func (q *Queue) fetch(ctx context.Context, run Fetcher, file, first, end int) error {
	return run(ctx, file, first, end, func(i int) {
		q.arrived(feedproto.Frame{File: uint32(file), Frame: uint32(i)})
	})
}

// calm waits until no hot frames are left, no reader is waiting, and at least the duration quiet
// has passed since a reader last needed a missing frame. It waits no longer than the duration most.
func (q *Queue) calm(ctx context.Context, quiet, most time.Duration) error {
	for begin := time.Now(); ; {
		q.mu.Lock()
		busy := len(q.hot) > 0 || len(q.waiting) > 0 || time.Since(q.last) < quiet
		q.mu.Unlock()
		if !busy || time.Since(begin) > most {
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(quiet, 50*time.Millisecond)):
		}
	}
}

// SetHot makes the queue fetch hot frames first. If the list names a frame that does not exist, SetHot
// ignores the whole list.
func (q *Queue) SetHot(list artifact.Hot) error {
	var hot []hotRun
	for n, in := range q.blobs {
		if in.have == nil {
			continue // all of its frames have arrived
		}
		runs, err := list.Of(in.Digest, in.Frames.Len())
		if err != nil {
			return err
		}
		for _, r := range runs {
			hot = append(hot, hotRun{n, r})
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hot = hot
	return nil
}

// hotRun is a run of hot frames of a file.
type hotRun struct {
	file int
	artifact.FrameRun
}

// hotBytes is the approximate size of a request for hot frames, in bytes.
const hotBytes = 256 << 10

// takeHot returns the next missing hot frames of a file.
func (q *Queue) takeHot() (file, first, end int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.hot) > 0 {
		r := &q.hot[0]
		in := q.blobs[r.file]
		for r.First < r.End && in.have[r.First] {
			r.First++
		}
		if r.First == r.End {
			q.hot = q.hot[1:]
			continue
		}
		first := r.First
		r.First = in.takeLocked(first, r.End, hotBytes)
		return r.file, first, r.First, true
	}
	return 0, 0, 0, false
}
