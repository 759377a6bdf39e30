package feed

import (
	"bytes"
	"crypto/rand"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/feedproto"
)

// The bound on the kept frames is a number of bytes, because a snapshot chooses the size of its
// frames.
func TestKeptFramesAreBounded(t *testing.T) {
	d, err := newDecoded()
	if err != nil {
		t.Fatal(err)
	}
	const frame = 2 << 20
	for i := range uint32(100) {
		d.put(feedproto.Frame{Frame: i}, make([]byte, frame))
	}
	if n := len(d.data); n != keptBytes/frame || len(d.order) != n || d.get(feedproto.Frame{Frame: 99}) == nil {
		t.Errorf("%d frames are kept, want %d", n, keptBytes/frame)
	}
}

// Reads that wait for frames take no memory for their data.
func TestWaitingReadsAreSmall(t *testing.T) {
	f := missing(t)
	s := &server{fd: -1, files: []*file{f}} // the server cannot answer without a descriptor
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const reads = 1000
	var all sync.WaitGroup
	for range reads {
		all.Go(func() { s.read(request{}, f, 0, readBytes) })
	}
	time.Sleep(200 * time.Millisecond) // until the reads wait
	runtime.GC()
	runtime.ReadMemStats(&after)
	f.arrivals.end(false)
	all.Wait()
	if took := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / reads; took > readBytes/8 {
		t.Errorf("a waiting read takes %d bytes", took)
	}
}

// missing returns a file whose only frame never arrives.
func missing(t *testing.T) *file {
	t.Helper()
	content := make([]byte, readBytes)
	_, _ = rand.Read(content)
	sum := snapshot.NewDigester(readBytes)
	if err := sum.Write(0, content); err != nil {
		t.Fatal(err)
	}
	e, err := artifact.NewEncoder()
	if err != nil {
		t.Fatal(err)
	}
	var coded bytes.Buffer
	part := artifact.Part{Name: "memory.layer.0", Bytes: readBytes, Digest: sum.Sum()}
	b, err := e.Encode(t.Context(), &coded, part, bytes.NewReader(content), func(at uint64) (uint64, uint64, error) {
		return at, readBytes, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	frames, err := artifact.ParseFrames(coded.Bytes()[b.Size-b.IndexBytes:], b)
	if err != nil {
		t.Fatal(err)
	}
	d, err := newDecoded()
	if err != nil {
		t.Fatal(err)
	}
	a := newArrivals(func(feedproto.Frame) error { return nil })
	return &file{bytes: readBytes, frames: frames, arrivals: a, decoded: d}
}

// The daemon may answer a question after it has said that all frames have arrived. Such an answer
// has no effect.
func TestAnswersAfterTheLastFrame(t *testing.T) {
	var asked []feedproto.Frame
	a := newArrivals(func(f feedproto.Frame) error { asked = append(asked, f); return nil })
	f := feedproto.Frame{Frame: 7}
	came, err := a.ask(f)
	if err != nil || len(asked) != 1 {
		t.Fatalf("asked for %v, %v", asked, err)
	}
	a.end(true)
	<-came
	a.came(f)
	if err := a.await(0, 7, 9); err != nil {
		t.Error(err)
	}
}
