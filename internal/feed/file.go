package feed

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/proto/feedproto"
)

// errLost means that a frame will never arrive.
var errLost = errors.New("the frame will not arrive")

// arrivals records which frames have arrived. A process has one such record for all of its files.
type arrivals struct {
	need func(feedproto.Frame) error // asks the daemon for a frame

	mu    sync.Mutex
	here  map[feedproto.Frame]bool
	asked map[feedproto.Frame]chan struct{} // closed when the frame has arrived, or will never arrive
	whole bool                              // all frames have arrived
	lost  bool                              // no further frame will arrive
}

func newArrivals(need func(feedproto.Frame) error) *arrivals {
	return &arrivals{need: need, here: make(map[feedproto.Frame]bool),
		asked: make(map[feedproto.Frame]chan struct{})}
}

// await waits until all of the given frames of a file have arrived. It asks the daemon once for
// each frame, and for all of them before it waits, so that they arrive together.
func (a *arrivals) await(file, first, end uint32) error {
	var waits []chan struct{}
	for i := first; i < end; i++ {
		came, err := a.ask(feedproto.Frame{File: file, Frame: i})
		if err != nil {
			return err
		}
		if came != nil {
			waits = append(waits, came)
		}
	}
	for _, came := range waits {
		<-came
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := first; i < end; i++ {
		if !a.whole && !a.here[feedproto.Frame{File: file, Frame: i}] {
			return errLost
		}
	}
	return nil
}

// ask asks the daemon for a frame, once. It returns nil if the frame has arrived. Otherwise it returns
// a channel that is closed when the frame has arrived, or can no longer arrive.
func (a *arrivals) ask(f feedproto.Frame) (came chan struct{}, err error) {
	a.mu.Lock()
	if a.whole || a.here[f] {
		a.mu.Unlock()
		return nil, nil
	}
	if a.lost {
		a.mu.Unlock()
		return nil, errLost
	}
	came, ok := a.asked[f]
	if !ok {
		came = make(chan struct{})
		a.asked[f] = came
	}
	a.mu.Unlock()
	if !ok {
		err = a.need(f)
	}
	return came, err
}

// came marks a frame as arrived. It does nothing if all frames have arrived: the daemon's answer
// about one frame may come after its message that all frames have arrived.
func (a *arrivals) came(f feedproto.Frame) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.whole {
		return
	}
	a.here[f] = true
	if c := a.asked[f]; c != nil {
		close(c)
		delete(a.asked, f)
	}
}

// end marks all frames as arrived, or all missing frames as lost. Further calls do nothing.
func (a *arrivals) end(whole bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.whole || a.lost {
		return
	}
	a.whole, a.lost = whole, !whole
	for _, c := range a.asked {
		close(c)
	}
	clear(a.asked)
	if whole {
		a.here = nil
	}
}

// file is one file of the snapshot.
type file struct {
	number   uint32
	bytes    uint64
	blob     *os.File
	frames   *artifact.Frameset
	arrivals *arrivals
	decoded  *decoded
}

// openFile reads the index of a file, which is at the end of its blob.
func openFile(number int, f feedproto.File, blob *os.File, a *arrivals, d *decoded) (*file, error) {
	b := artifact.Blob{Part: artifact.Part{Name: f.Name, Bytes: f.Bytes}, Size: int64(f.Size),
		IndexBytes: int64(f.IndexBytes), IndexDigest: digest.Digest(f.IndexDigest)}
	p := make([]byte, f.IndexBytes)
	if n, err := blob.ReadAt(p, b.Size-b.IndexBytes); n < len(p) {
		return nil, fmt.Errorf("%s: read the index: %w", f.Name, err)
	}
	frames, err := artifact.ParseFrames(p, b)
	if err != nil {
		return nil, err
	}
	return &file{number: uint32(number), bytes: f.Bytes, blob: blob, frames: frames, arrivals: a, decoded: d}, nil
}

// await waits until all frames that contain any of the n bytes at the given offset have arrived.
func (f *file) await(offset, n uint64) error {
	first, end := f.frames.Covering(offset, n)
	return f.arrivals.await(f.number, uint32(first), uint32(end))
}

// readAt fills p with the bytes at an offset. Their frames must have arrived, see await.
func (f *file) readAt(p []byte, offset uint64) error {
	first, end := f.frames.Covering(offset, uint64(len(p)))
	for i := first; i < end; i++ {
		data, err := f.frame(i)
		if err != nil {
			return err
		}
		f.frames.Copy(p, offset, i, data)
	}
	return nil
}

// frame returns the data of a frame.
func (f *file) frame(i int) ([]byte, error) {
	key := feedproto.Frame{File: f.number, Frame: uint32(i)}
	if data := f.decoded.get(key); data != nil {
		return data, nil
	}
	at, size := f.frames.Place(i)
	coded := make([]byte, size) // bounded by the index
	if n, err := f.blob.ReadAt(coded, at); n < len(coded) {
		return nil, fmt.Errorf("read a frame: %w", err)
	}
	data, err := f.frames.Decode(f.decoded.z, i, coded)
	if err == nil {
		f.decoded.put(key, data)
	}
	return data, err
}

// keptBytes bounds the decoded frames that are kept. Frames are kept because the kernel reads a
// frame in several pieces.
const keptBytes = 8 << 20

// decoders bounds how many reads are answered at a time. Reads that wait for frames do not count, and
// take no memory for data: VMMs under the control of their guests can have thousands of them.
const decoders = 4

// decoded keeps the most recently decoded frames.
type decoded struct {
	z      *zstd.Decoder
	places chan struct{} // has a value for each read that is being answered

	mu    sync.Mutex
	data  map[feedproto.Frame][]byte
	order []feedproto.Frame // oldest first
	bytes int               // length of data
}

func newDecoded() (*decoded, error) {
	z, err := artifact.NewFrameDecoder(decoders)
	return &decoded{z: z, places: make(chan struct{}, decoders), data: make(map[feedproto.Frame][]byte)}, err
}

func (d *decoded) get(f feedproto.Frame) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.data[f]
}

func (d *decoded) put(f feedproto.Frame, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.data[f] != nil {
		return
	}
	for len(d.order) > 0 && d.bytes+len(data) > keptBytes {
		d.bytes -= len(d.data[d.order[0]])
		delete(d.data, d.order[0])
		d.order = d.order[1:]
	}
	d.data[f], d.order, d.bytes = data, append(d.order, f), d.bytes+len(data)
}
