package framequeue

import (
	"bytes"
	"context"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/feedproto"
)

// arrivingBlob returns a blob of memory with 64 frames. No frame is there.
func arrivingBlob(t *testing.T) Blob {
	t.Helper()
	content := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(content)
	sum := snapshot.NewDigester(uint64(len(content)))
	if err := sum.Write(0, content); err != nil {
		t.Fatal(err)
	}
	e, err := artifact.NewEncoder()
	if err != nil {
		t.Fatal(err)
	}
	var coded bytes.Buffer
	part := artifact.Part{Name: artifact.MemoryPart + "0", Bytes: uint64(len(content)), Digest: sum.Sum()}
	b, err := e.Encode(t.Context(), &coded, part, bytes.NewReader(content), func(at uint64) (uint64, uint64, error) {
		return at, uint64(len(content)), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	frames, err := artifact.ParseFrames(coded.Bytes()[b.Size-b.IndexBytes:], b)
	if err != nil || frames.Len() != 64 {
		t.Fatalf("%d frames, %v", frames.Len(), err)
	}
	return Blob{Digest: b.Digest, Frames: frames}
}

// fetched returns a fetcher whose frames arrive at once. It appends the first frame and the end of
// each request to *requests.
func fetched(requests *[][2]int) Fetcher {
	var mu sync.Mutex
	return func(_ context.Context, _, first, end int, came func(int)) error {
		mu.Lock()
		*requests = append(*requests, [2]int{first, end})
		mu.Unlock()
		for i := first; i < end; i++ {
			came(i)
		}
		return nil
	}
}

// Hot frames come first, with one request for consecutive frames, and needed frames do not wait for
// them. The background begins when readers are quiet, and fetches no frame twice.
func TestHotFramesComeFirst(t *testing.T) {
	in := arrivingBlob(t)
	q := New([]Blob{in}, func(bool, int64) {})
	q.Start(func(feedproto.Frame) error { return nil })
	hot := artifact.Hot{in.Digest: {{First: 2, End: 6}, {First: 9, End: 10}, {First: 12, End: 36}}}
	if err := q.SetHot(hot); err != nil {
		t.Fatal(err)
	}
	q.Need(feedproto.Frame{Frame: 4})
	q.Need(feedproto.Frame{Frame: 60})
	q.Need(feedproto.Frame{Frame: 60})
	q.Need(feedproto.Frame{Frame: 64}) // does not exist
	q.Need(feedproto.Frame{File: 1})   // does not exist
	var got [][2]int
	if err := q.Run(t.Context(), 100*time.Millisecond, fetched(&got)); err != nil {
		t.Fatal(err)
	}
	times := make([]int, 64)
	for _, r := range got {
		for i := r[0]; i < r[1]; i++ {
			times[i]++
		}
	}
	if slices.ContainsFunc(times, func(n int) bool { return n != 1 }) {
		t.Errorf("frames were fetched %d times", times)
	}
	first := slices.SortedFunc(slices.Values(got[:min(7, len(got))]), func(a, b [2]int) int { return a[0] - b[0] })
	// 4 and 60 are needed. The hot frames 12 to 35 have more bytes than one request fetches.
	want := [][2]int{{2, 4}, {4, 5}, {5, 6}, {9, 10}, {12, 28}, {28, 36}, {60, 61}}
	if !reflect.DeepEqual(first, want) {
		t.Errorf("the first requests are for %d, want %d; all: %d", first, want, got)
	}
}

// The background waits while a reader needs frames, but not for ever.
func TestBackgroundIsHeldBack(t *testing.T) {
	in := arrivingBlob(t)
	q := New([]Blob{in}, func(bool, int64) {})
	q.Start(func(feedproto.Frame) error { return nil })
	for i := range uint32(20) {
		q.Need(feedproto.Frame{Frame: i})
	}
	q.last = time.Now().Add(time.Hour) // as if a reader were never quiet
	var got [][2]int
	err := q.Run(t.Context(), 50*time.Millisecond, fetched(&got))
	if err != nil || len(got) < 21 || got[len(got)-1][1] != 64 {
		t.Errorf("%d, %v", got, err)
	}
}

// If the registry is slow, the background's requests are small: a reader that needs a frame of such
// a request does not wait for a megabyte. If the registry is fast, the requests are large.
func TestBackgroundRequestsFitTheRegistry(t *testing.T) {
	for _, c := range []struct {
		perFrame time.Duration // time for each frame of 16 KiB
		most     int           // frames of the longest request after the first one
	}{{time.Second, 1}, {50 * time.Millisecond, 5}, {time.Microsecond, 56}} {
		synctest.Test(t, func(t *testing.T) {
			in := arrivingBlob(t)
			q := New([]Blob{in}, func(bool, int64) {})
			q.Start(func(feedproto.Frame) error { return nil })
			most, fetched := 0, 0
			err := q.Run(t.Context(), time.Millisecond, func(_ context.Context, _, first, end int, came func(int)) error {
				if fetched > 0 {
					most = max(most, end-first)
				}
				for i := first; i < end; i++ {
					time.Sleep(c.perFrame)
					came(i)
					fetched++
				}
				return nil
			})
			if err != nil || most != c.most || fetched != in.Frames.Len() {
				t.Errorf("with %v per frame: requests for up to %d frames, want %d; %d fetched, %v",
					c.perFrame, most, c.most, fetched, err)
			}
		})
	}
}
