package hub

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/proto/feedproto"
)

// incoming is a blob whose frames arrive in any order. Its index is there.
type incoming struct {
	b      artifact.Blob
	f      *os.File
	frames *artifact.Frameset
	fresh  bool // the file has a temporary name, and close removes it

	have []bool // frames that are there, or on their way; guarded by queue.mu
	left int    // first frame that the background has not taken; guarded by queue.mu
}

// readIncoming returns a blob of the cache, all of whose frames are there.
func readIncoming(f *os.File, b artifact.Blob) (*incoming, error) {
	p := make([]byte, b.IndexBytes)
	_, err := f.ReadAt(p, b.Size-b.IndexBytes)
	if err == nil || errors.Is(err, io.EOF) {
		var frames *artifact.Frameset
		if frames, err = artifact.ParseFrames(p, b); err == nil {
			return &incoming{b: b, f: f, frames: frames, left: frames.Len()}, nil
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

// queue decides which frames are fetched next.
type queue struct {
	files []*incoming
	count func(awaited bool, bytes int64) // called when a frame has arrived; must not block

	mu      sync.Mutex
	answer  func(feedproto.Frame) error // tells the feeder that a frame is there; nil before start
	waiting map[feedproto.Frame]bool    // frames that a reader waits for
	came    map[feedproto.Frame]bool    // frames that have arrived
	todo    []feedproto.Frame           // needed frames that nothing fetches yet
	last    time.Time                   // when a reader last needed a frame that was missing
	hot     []hotRun                    // see setHot; some of their frames may have arrived
	wake    chan struct{}               // has a value if todo may have frames
}

func newQueue(files []*incoming) *queue {
	return &queue{files: files, count: noCounts{}.FrameArrived,
		waiting: make(map[feedproto.Frame]bool), came: make(map[feedproto.Frame]bool),
		last: time.Now(), wake: make(chan struct{}, 1)}
}

// start sets the function that tells the feeder about arrived frames.
func (q *queue) start(answer func(feedproto.Frame) error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.answer = answer
}

// exists reports whether a frame exists. The feeder is not trusted: it decodes what the registry has
// sent.
func (q *queue) exists(f feedproto.Frame) bool {
	return int(f.File) < len(q.files) && int(f.Frame) < q.files[f.File].frames.Len()
}

// need records that a reader waits for a frame.
func (q *queue) need(f feedproto.Frame) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.exists(f) || q.waiting[f] {
		return
	}
	in := q.files[f.File]
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

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// arrived records that a frame is there.
func (q *queue) arrived(f feedproto.Frame) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.came[f] = true
	_, bytes := q.files[f.File].frames.Place(int(f.Frame))
	q.count(q.waiting[f], bytes)
	if q.waiting[f] {
		delete(q.waiting, f)
		_ = q.answer(f) // fails if the process has exited
	}
}

// take returns the next needed frame.
func (q *queue) take() (f feedproto.Frame, ok bool) {
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

// The background fetches about as many bytes with one request as arrive in runTime, because a reader
// that comes to need the last frame of a request waits for all of its frames.
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
func (q *queue) takeRun(size int64) (file, first, end int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for n, in := range q.files {
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

// takeLocked takes consecutive missing frames, beginning with first. It stops before a frame that is
// present or has the number limit, or when the frames have at least the given number of bytes. It
// returns the number of the next frame. Preconditions: queue.mu is held, and first is missing.
func (in *incoming) takeLocked(first, limit int, bytes int64) (end int) {
	size := int64(0)
	for end = first; end < limit && !in.have[end] && size < bytes; end++ {
		_, n := in.frames.Place(end)
		size += n
		in.have[end] = true
	}
	return end
}

// bytes returns the size of the frames first to end-1 in the blob.
func (in *incoming) bytes(first, end int) (n int64) {
	for i := first; i < end; i++ {
		_, size := in.frames.Place(i)
		n += size
	}
	return n
}

// workers is the number of concurrent requests for needed and hot frames. One worker fetches no hot
// frames, so that needed frames do not wait for them.
const workers = 4

// The background waits for these multiples of the time quiet.
const (
	firstLull, firstMost = 3, 30 // before its first request, while the first children start
	lull, most           = 1, 3  // before each other request
)

// fetcher fetches consecutive frames of a file, and calls came after each frame.
type fetcher func(ctx context.Context, in *incoming, first, end int, came func(frame int)) error

// run fetches all frames by calling fetch: first hot frames and frames that readers need, then all
// others in the background. Before each request, the background waits until all hot frames were
// requested, and no reader has needed a frame for a lull. It never waits longer than most.
func (q *queue) run(ctx context.Context, quiet time.Duration, fetch fetcher) error {
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
			size = nextRun(q.files[file].bytes(first, end), time.Since(begin))
		}
		return err
	})
	for n := range workers {
		g.Go(func() error { return q.work(ctx, n > 0, done, fetch) })
	}
	return g.Wait()
}

// work fetches needed frames and, if hot is set, hot frames, until done is closed.
func (q *queue) work(ctx context.Context, hot bool, done <-chan struct{}, fetch fetcher) error {
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
func (q *queue) drain(ctx context.Context, fetch fetcher) error {
	for f, ok := q.take(); ok; f, ok = q.take() {
		if err := q.fetch(ctx, fetch, int(f.File), int(f.Frame), int(f.Frame)+1); err != nil {
			return err
		}
	}
	return nil
}

// fetch fetches the frames first to end-1 of a file by calling run.
func (q *queue) fetch(ctx context.Context, run fetcher, file, first, end int) error {
	return run(ctx, q.files[file], first, end, func(i int) {
		q.arrived(feedproto.Frame{File: uint32(file), Frame: uint32(i)})
	})
}

// calm waits until there are no hot frames left and no reader has needed a frame for the time quiet,
// but at most for the time most.
func (q *queue) calm(ctx context.Context, quiet, most time.Duration) error {
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
