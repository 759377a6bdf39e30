package artifact

import (
	"crypto/sha256"
	"errors"
	"sort"

	"github.com/klauspost/compress/zstd"
)

// Frameset finds the frames that contain a part of a file. With it, a program can read a blob before
// all of its frames have arrived. Its methods may be called concurrently.
type Frameset struct {
	part  Part
	index *index
	at    []int64 // offset of each frame in the blob
}

// ParseFrames decodes and checks the index p of the blob b. If p is not the index that b describes,
// the error is an *Error.
func ParseFrames(p []byte, b Blob) (*Frameset, error) {
	x, err := parseIndex(p, b)
	if err != nil {
		return nil, invalid("%s: %w", b.Part.Name, err)
	}
	f := &Frameset{part: b.Part, index: x, at: make([]int64, len(x.frames))}
	at := int64(0)
	for i := range x.frames {
		f.at[i] = at
		at += int64(x.frames[i].size)
	}
	return f, nil
}

// Len returns the number of frames.
func (f *Frameset) Len() int { return len(f.at) }

// Place returns the offset and the size of frame i in the blob, in bytes.
func (f *Frameset) Place(i int) (at, size int64) { return f.at[i], int64(f.index.frames[i].size) }

// Covering returns the frames first to end-1, which contain all data in the n bytes of the file at the
// given offset. Some frames in this range may have no data there. Bytes that are in no frame are zero.
func (f *Frameset) Covering(offset, n uint64) (first, end int) {
	frames := f.index.frames
	first = sort.Search(len(frames), func(i int) bool {
		last := frames[i].runs[len(frames[i].runs)-1]
		start, length := last.bytes(f.part.Bytes)
		return start+length > offset
	})
	rest := frames[first:]
	return first, first + sort.Search(len(rest), func(i int) bool {
		start, _ := rest[i].runs[0].bytes(f.part.Bytes)
		return start >= offset+n
	})
}

// Verify returns an *Error if p does not contain the bytes of frame i.
func (f *Frameset) Verify(i int, p []byte) error {
	if want := &f.index.frames[i]; len(p) != int(want.size) || sha256.Sum256(p) != want.sum {
		return invalid("%s: frame %d differs from its digest", f.part.Name, i)
	}
	return nil
}

// Decode verifies and decodes frame i, whose bytes are in coded. The decoder must come from
// NewFrameDecoder.
func (f *Frameset) Decode(z *zstd.Decoder, i int, coded []byte) ([]byte, error) {
	if err := f.Verify(i, coded); err != nil {
		return nil, err
	}
	want := uint64(0)
	for _, r := range f.index.frames[i].runs {
		_, n := r.bytes(f.part.Bytes)
		want += n
	}
	data, err := z.DecodeAll(coded, make([]byte, 0, want)) // the index bounds want
	if err == nil && uint64(len(data)) != want {
		err = errors.New("it has not as much data as the index says")
	}
	if err != nil {
		return nil, invalid("%s: frame %d: %w", f.part.Name, i, err)
	}
	return data, nil
}

// NewFrameDecoder returns a decoder for Decode. It may be used concurrently, and decodes at most n
// frames at a time.
func NewFrameDecoder(n int) (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(n), zstd.WithDecoderMaxMemory(maxFrameBytes),
		zstd.WithDecoderMaxWindow(maxFrameBytes), zstd.WithDecodeAllCapLimit(true))
}

// Copy copies bytes of frame i to p, the buffer for the part of the file at the given offset. It
// copies only the bytes that belong to this part. The parameter data is the result of Decode.
func (f *Frameset) Copy(p []byte, offset uint64, i int, data []byte) {
	end := offset + uint64(len(p))
	for _, r := range f.index.frames[i].runs {
		start, n := r.bytes(f.part.Bytes)
		if from, to := max(start, offset), min(start+n, end); from < to {
			copy(p[from-offset:to-offset], data[from-start:to-start])
		}
		data = data[n:]
	}
}
