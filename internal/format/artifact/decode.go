package artifact

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// Reader reads a blob. Only one goroutine may use it.
type Reader struct {
	blob  Blob
	r     io.ReaderAt
	index *index
}

// Open reads and checks the index of a blob. The reader r has the bytes of the blob. The caller
// need not have verified them. If they differ from the description b, the error is an *Error.
func Open(r io.ReaderAt, b Blob) (*Reader, error) {
	p := make([]byte, b.IndexBytes)
	if n, err := r.ReadAt(p, b.Size-b.IndexBytes); n < len(p) {
		return nil, invalid("%s: read the index: %w", b.Part.Name, err)
	}
	x, err := parseIndex(p, b)
	if err != nil {
		return nil, invalid("%s: %w", b.Part.Name, err)
	}
	return &Reader{b, r, x}, nil
}

// Data returns how many bytes Decode writes.
func (r *Reader) Data() uint64 { return r.index.data }

// Decode calls write(offset, p) for each nonzero part of the file, in ascending order. Each part is
// a whole number of pages, except at the end of the file. Every frame is compared with its digest
// before it is decoded. If the whole content differs from the digest in the manifest, Decode
// returns an *Error at the end, so the caller must not use the file before Decode returns nil.
func (r *Reader) Decode(ctx context.Context, write func(offset uint64, p []byte) error) error {
	limit := r.index.frameBytes
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(uint64(limit)),
		zstd.WithDecoderMaxWindow(maxFrameBytes), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		return err
	}
	defer z.Close()
	part := r.blob.Part
	content := snapshot.NewDigester(part.Bytes)
	coded, data := make([]byte, 0, limit+frameSlack), make([]byte, 0, limit)
	at := int64(0)
	for i := range r.index.frames {
		if err := ctx.Err(); err != nil {
			return err
		}
		f := &r.index.frames[i]
		coded = coded[:f.size]
		if n, err := r.r.ReadAt(coded, at); n < len(coded) {
			return invalid("%s: frame %d: %w", part.Name, i, err)
		}
		at += int64(f.size)
		if sha256.Sum256(coded) != f.sum {
			return invalid("%s: frame %d differs from its digest", part.Name, i)
		}
		if data, err = z.DecodeAll(coded, data[:0]); err != nil {
			return invalid("%s: frame %d: %w", part.Name, i, err)
		}
		if err := deliver(f, data, part, content, write); err != nil {
			return fmt.Errorf("%s: frame %d: %w", part.Name, i, err)
		}
	}
	if got := content.Sum(); got != part.Digest {
		return invalid(
			"%s: its content has the digest %.20s…, not %.20s… as the manifest says",
			part.Name,
			got,
			part.Digest,
		)
	}
	return nil
}

// deliver calls write(offset, p) for each run of a frame.
func deliver(f *frame, data []byte, part Part, content *snapshot.Digester, write func(uint64, []byte) error) error {
	for _, run := range f.runs {
		start, n := run.bytes(part.Bytes)
		if n > uint64(len(data)) {
			return invalid("it has less data than the index says")
		}
		if err := content.Write(start, data[:n]); err != nil {
			return err
		}
		if err := write(start, data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	if len(data) > 0 {
		return invalid("it has more data than the index says")
	}
	return nil
}
