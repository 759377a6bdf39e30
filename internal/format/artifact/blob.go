package artifact

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/codec"
)

// A blob is a valid zstd stream:
//
//	frames   independent zstd frames, each with up to frame size bytes of the file
//	index    a skippable frame (RFC 8878, 3.1.2): magic u32, length u32, then
//	    magic       8 bytes "FORKDIDX"
//	    version     u32 = 1
//	    frame size  u32, maximum decoded bytes of a frame
//	    length      u64, of the file in bytes
//	    count       u32
//	    frames      count × { size u32, SHA-256 of the frame 32 bytes, runs u32, runs × { page u64, pages u32 } }
//
// All numbers are little-endian. A run is a contiguous part of the file, in pages of 4096 bytes;
// the last page of a file may be shorter. A frame decodes to the bytes of its runs, one run after
// another. The runs of the whole blob are in ascending order. The rest of the file is zero.
//
// The descriptor of the blob has the length and the digest of the index, so a reader of any range of
// the blob can verify the index and a frame before it decodes the frame.
const (
	pageBytes = snapshot.DigestChunk

	// FrameBytes is the size of the data in a frame, in bytes, except in memory layers, see
	// frameBytesOf. Larger frames compress better, but a reader of one page needs a whole frame.
	FrameBytes = 256 << 10

	// minMemoryFrame is the size of the data in a frame of a small memory layer, in bytes. A guest reads
	// single pages all over its memory. With frames of 256 KiB, a child had to fetch two thirds of its
	// memory for its first answer. Memory takes about 8 % more bytes in frames of 16 KiB.
	minMemoryFrame = 16 << 10

	// maxMemoryFrames is the number of frames above which a memory layer gets larger frames. A puller
	// needs the whole index before it can start a child.
	maxMemoryFrames = 64 << 10

	skippableMagic = 0x184D2A5E
	indexMagic     = "FORKDIDX"
	indexVersion   = 1
	skippableHead  = 4 + 4
	indexHead      = len(indexMagic) + 4 + 4 + 8 + 4
	minIndex       = int64(skippableHead + indexHead)
	maxIndex       = 64 << 20
	runBytes       = 8 + 4
	frameHead      = 4 + 32 + 4
	maxFrameBytes  = 2 << 20
)

// frameBytesOf returns the size of the data in the frames of a part.
func frameBytesOf(p Part) int {
	if !strings.HasPrefix(p.Name, MemoryPart) {
		return FrameBytes
	}
	n := minMemoryFrame
	for n < FrameBytes && p.Bytes/uint64(n) > maxMemoryFrames {
		n *= 2
	}
	return n
}

// frame is an entry of the index.
type frame struct {
	size uint32 // bytes of the zstd frame
	sum  [32]byte
	runs []run
}

// run is a part of a file, in pages.
type run struct {
	page  uint64
	pages uint32
}

// bytes returns the range of the file that r covers. The parameter length is the length of the
// file.
func (r run) bytes(length uint64) (start, n uint64) {
	start = r.page * pageBytes
	return start, min(uint64(r.pages)*pageBytes, length-start)
}

// encodeIndex returns the index of a blob whose frames have up to frameBytes of the file.
func encodeIndex(frames []frame, frameBytes int, length uint64) ([]byte, error) {
	var w codec.Writer
	w.Raw([]byte(indexMagic))
	w.U32(indexVersion)
	w.U32(uint32(frameBytes))
	w.U64(length)
	w.U32(uint32(len(frames)))
	for _, f := range frames {
		w.U32(f.size)
		w.Raw(f.sum[:])
		w.U32(uint32(len(f.runs)))
		for _, r := range f.runs {
			w.U64(r.page)
			w.U32(r.pages)
		}
	}
	if len(w.Bytes())+skippableHead > maxIndex {
		return nil, fmt.Errorf(
			"its data is scattered: the index would have %d bytes, at most %d",
			len(w.Bytes()),
			maxIndex,
		)
	}
	var out codec.Writer
	out.U32(skippableMagic)
	out.U32(uint32(len(w.Bytes())))
	out.Raw(w.Bytes())
	return out.Bytes(), nil
}

// index is a decoded index.
type index struct {
	frameBytes uint32
	frames     []frame
	data       uint64 // size of the decoded data of all frames, in bytes
}

// parseIndex decodes and checks the index p of the blob b.
func parseIndex(p []byte, b Blob) (*index, error) {
	if int64(len(p)) != b.IndexBytes || digest.FromBytes(p) != b.IndexDigest {
		return nil, errors.New("the index differs from its digest")
	}
	r := codec.NewReader(p)
	if r.U32() != skippableMagic || int64(r.U32()) != b.IndexBytes-skippableHead ||
		string(r.Raw(len(indexMagic))) != indexMagic {
		return nil, errors.New("no index at the end")
	}
	if v := r.U32(); v != indexVersion {
		return nil, fmt.Errorf("index version %d: this forkd reads version %d", v, indexVersion)
	}
	x := &index{frameBytes: r.U32()}
	if x.frameBytes < pageBytes || x.frameBytes > maxFrameBytes || x.frameBytes%pageBytes != 0 {
		return nil, fmt.Errorf("frames of %d bytes: at most %d", x.frameBytes, maxFrameBytes)
	}
	length := r.U64()
	if r.Err() == nil && length != b.Part.Bytes {
		return nil, fmt.Errorf("a file of %d bytes, not %d as the manifest says", length, b.Part.Bytes)
	}
	frames := min(r.Count(frameHead), maxIndex/frameHead)
	x.frames = make([]frame, 0, frames)
	c := checker{pages: pagesOf(length), frameBytes: x.frameBytes, length: length}
	for range frames {
		f := frame{size: r.U32()}
		copy(f.sum[:], r.Raw(len(f.sum)))
		f.runs = make([]run, r.Count(runBytes))
		for i := range f.runs {
			f.runs[i] = run{r.U64(), r.U32()}
		}
		if r.Err() != nil {
			break
		}
		if err := c.add(&f); err != nil {
			return nil, err
		}
		x.frames = append(x.frames, f)
	}
	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	if c.stored != uint64(b.Size-b.IndexBytes) {
		return nil, fmt.Errorf("frames of %d bytes in a blob that has %d", c.stored, b.Size-b.IndexBytes)
	}
	x.data = c.data
	return x, nil
}

// checker checks the frames of an index, one after the other.
type checker struct {
	pages      uint64 // number of pages of the file
	length     uint64 // length of the file in bytes
	frameBytes uint32
	next       uint64 // first page that the next run may begin at
	data       uint64
	stored     uint64
}

func (c *checker) add(f *frame) error {
	sum := uint64(0)
	for _, r := range f.runs {
		if r.pages == 0 || r.page < c.next || r.page > c.pages || uint64(r.pages) > c.pages-r.page {
			return fmt.Errorf(
				"run of %d pages at page %d: outside of the file of %d, or behind a later run",
				r.pages,
				r.page,
				c.pages,
			)
		}
		c.next = r.page + uint64(r.pages)
		_, n := r.bytes(c.length)
		sum += n
		if sum > uint64(c.frameBytes) {
			return fmt.Errorf("a frame of more than %d bytes", c.frameBytes)
		}
	}
	if sum == 0 || f.size == 0 || uint64(f.size) > sum+frameSlack {
		return fmt.Errorf("a frame of %d bytes for %d", f.size, sum)
	}
	c.data += sum
	c.stored += uint64(f.size)
	return nil
}

// frameSlack is the maximum number of bytes that a zstd frame adds to its data: the headers of the
// frame and of its blocks.
const frameSlack = 1 << 10

func pagesOf(length uint64) uint64 {
	if length > math.MaxUint64-pageBytes {
		return length / pageBytes
	}
	return (length + pageBytes - 1) / pageBytes
}

// Frame describes a frame of a blob, without its place in the file.
type Frame struct {
	Size uint32 // bytes
	Sum  [32]byte
}

// Frames decodes and checks the index of the blob b, and returns the frames in their order. So a
// program that receives the blob can verify each frame when it arrives. If p is not the index that
// b describes, the error is an *Error.
func Frames(p []byte, b Blob) ([]Frame, error) {
	x, err := parseIndex(p, b)
	if err != nil {
		return nil, invalid("%s: %w", b.Part.Name, err)
	}
	list := make([]Frame, len(x.frames))
	for i, f := range x.frames {
		list[i] = Frame{f.size, f.sum}
	}
	return list, nil
}
