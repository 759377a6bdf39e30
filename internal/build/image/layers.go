package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"

	"github.com/forkd/forkd/internal/treetar"
)

// nameBudget limits the memory for the names in an image. Every name is kept until the whole image
// is read. The names of a large distribution image take a third of the budget.
type nameBudget struct{ bytes int }

const (
	maxNames = 128 << 20
	nameSize = 64 // cost of keeping a name, in addition to its bytes
)

// keep takes a name of n bytes from the budget.
func (b *nameBudget) keep(n int) error {
	if b.bytes += n + nameSize; b.bytes > maxNames {
		return fmt.Errorf("the names of the image's files take more than %d MiB", maxNames>>20)
	}
	return nil
}

// boundedImage checks the names in the layers of an image before any reader of the layers sees
// them. A read fails when ctx is done.
type boundedImage struct {
	v1.Image
	ctx   context.Context
	diffs []v1.Hash // digests that the layers' content must have; nil: not checked
	plain bool      // the layers are not compressed
}

// Layers returns the image's layers, which share one budget of names.
func (i boundedImage) Layers() ([]v1.Layer, error) {
	layers, err := i.Image.Layers()
	budget := &nameBudget{}
	for n, l := range layers {
		bounded := boundedLayer{Layer: l, ctx: i.ctx, names: budget, plain: i.plain, number: n + 1}
		if i.diffs != nil {
			bounded.diff = &i.diffs[n]
		}
		layers[n] = bounded
	}
	return layers, err
}

type boundedLayer struct {
	v1.Layer
	ctx    context.Context
	names  *nameBudget
	diff   *v1.Hash // digest that the content must have; nil: not checked
	number int      // from 1, for errors
	plain  bool     // it is not compressed
}

// Uncompressed returns the layer's archive unchanged, up to the first entry that is refused. At the end
// it fails if the digest of the content differs from diff.
func (l boundedLayer) Uncompressed() (io.ReadCloser, error) {
	from, err := l.open()
	if err != nil {
		return nil, err
	}
	if l.diff != nil {
		sum, err := v1.Hasher(l.diff.Algorithm)
		if err != nil {
			return nil, errors.Join(err, from.Close())
		}
		from = &diffReader{from, sum, l}
	}
	r := &layerReader{Closer: from, from: from, layer: l, chunk: make([]byte, 32<<10)}
	r.archive = treetar.NewReader(io.TeeReader(from, &r.ahead))
	return r, nil
}

// maxWindow bounds the window of a layer that zstd compressed, in bytes. The program zstd has the
// same bound.
const maxWindow = 128 << 20

// compression of a layer.
type compression int

const (
	plainLayer compression = iota
	gzipLayer
	zstdLayer
)

const magicBytes = 4 // the longest start of a compressed file

// compressionOf tells the compression of a file from its start.
func compressionOf(start []byte) compression {
	switch {
	case bytes.HasPrefix(start, []byte("\x1f\x8b")): // RFC 1952, section 2.3.1
		return gzipLayer
	case bytes.HasPrefix(start, []byte("\x28\xb5\x2f\xfd")): // RFC 8878, section 3.1.1
		return zstdLayer
	}
	return plainLayer
}

// open returns the content of the layer. It decompresses the layer itself, because the library gives
// zstd as much memory as the layer asks for.
func (l boundedLayer) open() (io.ReadCloser, error) {
	if l.plain {
		return l.Layer.Uncompressed()
	}
	from, err := l.Layer.Compressed()
	if err != nil {
		return nil, err
	}
	var plain io.Reader
	in := bufio.NewReaderSize(from, 64<<10)
	magic, _ := in.Peek(magicBytes) // what is shorter is not compressed
	switch compressionOf(magic) {
	case gzipLayer:
		plain, err = gzip.NewReader(in)
	case zstdLayer:
		plain, err = zstd.NewReader(in, zstd.WithDecoderMaxMemory(maxWindow), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderConcurrency(1))
	default:
		plain = in
	}
	if err != nil {
		return nil, errors.Join(err, from.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{plain, from}, nil
}

// layerReader passes on the bytes of an archive after a tar.Reader has checked them.
type layerReader struct {
	io.Closer
	from    io.Reader
	layer   boundedLayer
	archive *treetar.Reader
	ahead   bytes.Buffer // read by archive, not passed on yet
	chunk   []byte
	content bool // archive is inside an entry's content
	ended   bool // archive has reached its end; the rest is passed on unchecked, for the layer's digest
}

func (r *layerReader) Read(p []byte) (int, error) {
	for r.ahead.Len() == 0 && !r.ended {
		if err := r.layer.ctx.Err(); err != nil {
			return 0, err
		}
		if err := r.advance(); err != nil {
			return 0, err
		}
	}
	if r.ahead.Len() > 0 {
		return r.ahead.Read(p)
	}
	return r.from.Read(p)
}

// advance reads a piece of an entry's content, or the next header.
func (r *layerReader) advance() error {
	if r.content {
		_, err := r.archive.Read(r.chunk)
		if errors.Is(err, io.EOF) {
			r.content, err = false, nil
		}
		return err
	}
	h, err := r.archive.Next()
	if errors.Is(err, io.EOF) {
		r.ended = true
		return nil
	}
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("the container image is damaged: layer %d: %w", r.layer.number, err)
	}
	if err != nil {
		return fmt.Errorf("read archive: %w", err)
	}
	size := len(h.Name)
	if _, ok := h.PAXRecords["path"]; ok { // the name keeps the PAX records in memory, because it is a part of them
		size += r.ahead.Len()
	}
	err = errors.Join(treetar.CheckName(h.Name), treetar.CheckName(h.Linkname), r.layer.names.keep(size))
	if err != nil {
		return fmt.Errorf("archive entry: %w", err)
	}
	r.content = true
	return nil
}

// diffReader passes on the content of a layer and compares its digest at the end.
type diffReader struct {
	io.ReadCloser
	sum   hash.Hash
	layer boundedLayer
}

func (r *diffReader) Read(p []byte) (int, error) {
	if err := r.layer.ctx.Err(); err != nil { // needed if only zeros follow the archive
		return 0, err
	}
	n, err := r.ReadCloser.Read(p)
	r.sum.Write(p[:n])
	if errors.Is(err, io.EOF) {
		if got := hex.EncodeToString(r.sum.Sum(nil)); got != r.layer.diff.Hex {
			return n, fmt.Errorf("the container image is damaged: layer %d: content has digest %s, its configuration says %s",
				r.layer.number, got, r.layer.diff.Hex)
		}
	}
	return n, err
}
