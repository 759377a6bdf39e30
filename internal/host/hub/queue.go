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

// need records that a reader waits for a frame. The feeder is not trusted: it decodes what the
// registry has sent.
func (q *queue) need(f feedproto.Frame) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if int(f.File) >= len(q.files) || int(f.Frame) >= q.files[f.File].frames.Len() || q.waiting[f] {
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

// runBytes is about how many bytes the background fetches with one request.
const runBytes = 1 << 20

// takeRun returns the next missing frames of a file for the background.
func (q *queue) takeRun() (file, first, end int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for n, in := range q.files {
		for in.left < len(in.have) && in.have[in.left] {
			in.left++
		}
		first, size := in.left, int64(0)
		for in.left < len(in.have) && !in.have[in.left] && size < runBytes {
			_, bytes := in.frames.Place(in.left)
			size += bytes
			in.have[in.left] = true
			in.left++
		}
		if in.left > first {
			return n, first, in.left, true
		}
	}
	return 0, 0, 0, false
}

// workers is how many needed frames are fetched at a time.
const workers = 4

// run fetches all frames by calling fetch: frames that readers need at once, and all others in the
// background. Before each request, the background waits until no reader has needed a frame for the
// time quiet, but never longer than three times quiet.
func (q *queue) run(ctx context.Context, quiet time.Duration,
	fetch func(ctx context.Context, in *incoming, first, end int, came func(int)) error) error {
	g, ctx := errgroup.WithContext(ctx)
	done := make(chan struct{}) // closed when the background has fetched all that was left
	g.Go(func() error {
		defer close(done)
		for {
			if err := q.calm(ctx, quiet); err != nil {
				return err
			}
			file, first, end, ok := q.takeRun()
			if !ok {
				return nil
			}
			err := fetch(ctx, q.files[file], first, end, func(i int) {
				q.arrived(feedproto.Frame{File: uint32(file), Frame: uint32(i)})
			})
			if err != nil {
				return err
			}
		}
	})
	for range workers {
		g.Go(func() error {
			for {
				f, ok := q.take()
				if !ok {
					select {
					case <-q.wake:
						continue
					case <-done:
						return q.drain(ctx, fetch)
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				if err := q.one(ctx, f, fetch); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// drain fetches the needed frames that remain when the background has finished.
func (q *queue) drain(ctx context.Context,
	fetch func(ctx context.Context, in *incoming, first, end int, came func(int)) error) error {
	for f, ok := q.take(); ok; f, ok = q.take() {
		if err := q.one(ctx, f, fetch); err != nil {
			return err
		}
	}
	return nil
}

func (q *queue) one(ctx context.Context, f feedproto.Frame,
	fetch func(ctx context.Context, in *incoming, first, end int, came func(int)) error) error {
	return fetch(ctx, q.files[f.File], int(f.Frame), int(f.Frame)+1, func(int) { q.arrived(f) })
}

// calm waits until no reader has needed a frame for the given time, but at most three times as long.
func (q *queue) calm(ctx context.Context, quiet time.Duration) error {
	for begin := time.Now(); ; {
		q.mu.Lock()
		busy := len(q.waiting) > 0 || time.Since(q.last) < quiet
		q.mu.Unlock()
		if !busy || time.Since(begin) > 3*quiet {
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(quiet, 50*time.Millisecond)):
		}
	}
}
