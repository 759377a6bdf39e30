package artifact

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// readBytes is the size of one read of a file, in bytes.
const readBytes = 1 << 20

var zeroPage [pageBytes]byte

// Encoder encodes files. Only one goroutine may use it.
type Encoder struct {
	zstd *zstd.Encoder
	in   []byte
}

// NewEncoder returns an Encoder.
func NewEncoder() (*Encoder, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault),
		zstd.WithEncoderCRC(false), zstd.WithWindowSize(FrameBytes))
	if err != nil {
		return nil, err
	}
	return &Encoder{zstd: z, in: make([]byte, readBytes)}, nil
}

// Encode writes the blob of a file to w. It calls data(offset) to get the next range that may have
// nonzero bytes. If there is no such range, data returns io.EOF. If the content differs from the
// digest in p, Encode returns an error. The same content gives the same blob.
func (e *Encoder) Encode(ctx context.Context, w io.Writer, p Part, file io.ReaderAt,
	data func(at uint64) (start, end uint64, err error),
) (Blob, error) {
	out := &blobWriter{w: w, all: sha256.New(), zstd: e.zstd, frameBytes: frameBytesOf(p)}
	content := snapshot.NewDigester(p.Bytes)
	for at := uint64(0); at < p.Bytes; {
		start, end, err := data(at)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Blob{}, fmt.Errorf("pack %s: %w", p.Name, err)
		}
		start, end = max(at, start-start%pageBytes), min(p.Bytes, (end+pageBytes-1)/pageBytes*pageBytes)
		if err := e.copyRange(ctx, out, content, file, start, end); err != nil {
			return Blob{}, fmt.Errorf("pack %s: %w", p.Name, err)
		}
		at = max(end, at+1)
	}
	if got := content.Sum(); got != p.Digest {
		return Blob{}, fmt.Errorf(
			"pack %s: its digest is %.20s…, not %.20s… as the manifest says: 'forkd verify' tells more",
			p.Name,
			got,
			p.Digest,
		)
	}
	b, err := out.finish(p)
	if err != nil {
		return Blob{}, fmt.Errorf("pack %s: %w", p.Name, err)
	}
	return b, nil
}

func (e *Encoder) copyRange(ctx context.Context, out *blobWriter, content *snapshot.Digester, file io.ReaderAt,
	start, end uint64,
) error {
	for start < end {
		if err := ctx.Err(); err != nil {
			return err
		}
		p := e.in[:min(uint64(len(e.in)), end-start)]
		if n, err := file.ReadAt(p, int64(start)); n < len(p) {
			return errors.Join(errors.New("the file became shorter"), err)
		}
		if err := content.Write(start, p); err != nil {
			return err
		}
		for page := start / pageBytes; len(p) > 0; page++ {
			n := min(len(p), pageBytes)
			if !bytes.Equal(p[:n], zeroPage[:n]) {
				if err := out.add(page, p[:n]); err != nil {
					return err
				}
			}
			p = p[n:]
			start += uint64(n)
		}
	}
	return nil
}

// blobWriter writes the frames of a blob.
type blobWriter struct {
	w      io.Writer
	all    hash.Hash
	zstd   *zstd.Encoder
	size   int64
	frames []frame
	runs   []run // runs of the next frame
	data   []byte
	coded  []byte

	frameBytes int // maximum length of data
}

// add adds a page that is not all zeros.
func (b *blobWriter) add(page uint64, p []byte) error {
	if len(b.data)+len(p) > b.frameBytes {
		if err := b.flush(); err != nil {
			return err
		}
	}
	if n := len(b.runs); n > 0 && b.runs[n-1].page+uint64(b.runs[n-1].pages) == page {
		b.runs[n-1].pages++
	} else {
		b.runs = append(b.runs, run{page, 1})
	}
	b.data = append(b.data, p...)
	return nil
}

// flush writes the next frame.
func (b *blobWriter) flush() error {
	if len(b.data) == 0 {
		return nil
	}
	b.coded = b.zstd.EncodeAll(b.data, b.coded[:0])
	b.frames = append(b.frames, frame{size: uint32(len(b.coded)), sum: sha256.Sum256(b.coded), runs: b.runs})
	b.runs, b.data = nil, b.data[:0]
	return b.write(b.coded)
}

func (b *blobWriter) write(p []byte) error {
	b.all.Write(p)
	b.size += int64(len(p))
	_, err := b.w.Write(p)
	return err
}

// finish writes the last frame and the index.
func (b *blobWriter) finish(p Part) (Blob, error) {
	if err := b.flush(); err != nil {
		return Blob{}, err
	}
	index, err := encodeIndex(b.frames, b.frameBytes, p.Bytes)
	if err != nil {
		return Blob{}, err
	}
	if err := b.write(index); err != nil {
		return Blob{}, err
	}
	return Blob{Part: p, Size: b.size, Digest: digest.NewDigestFromBytes(digest.SHA256, b.all.Sum(nil)),
		IndexBytes: int64(len(index)), IndexDigest: digest.FromBytes(index)}, nil
}
