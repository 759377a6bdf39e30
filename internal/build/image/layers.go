package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/forkd/forkd/internal/treetar"
)

// nameBudget is a budget of memory for the names of an image, each of which is kept until the whole
// image is read. The names of a large distribution image take a third of it.
type nameBudget struct{ bytes int }

const (
	maxNames = 128 << 20
	nameSize = 64 // what keeping a name takes besides its bytes
)

// keep takes a name of n bytes from the budget.
func (b *nameBudget) keep(n int) error {
	if b.bytes += n + nameSize; b.bytes > maxNames {
		return fmt.Errorf("the names of the image's files take more than %d MiB", maxNames>>20)
	}
	return nil
}

// boundedImage checks the names in the layers of an image before whoever reads the layers sees
// them. A read fails when ctx has ended.
type boundedImage struct {
	v1.Image
	ctx context.Context
}

// Layers returns the image's layers, which share one budget of names.
func (i boundedImage) Layers() ([]v1.Layer, error) {
	layers, err := i.Image.Layers()
	budget := &nameBudget{}
	for n, l := range layers {
		layers[n] = boundedLayer{l, i.ctx, budget}
	}
	return layers, err
}

type boundedLayer struct {
	v1.Layer
	ctx   context.Context
	names *nameBudget
}

// Uncompressed returns the layer's archive as it is, up to the first entry that is refused.
func (l boundedLayer) Uncompressed() (io.ReadCloser, error) {
	from, err := l.Layer.Uncompressed()
	if err != nil {
		return nil, err
	}
	r := &layerReader{Closer: from, from: from, layer: l, chunk: make([]byte, 32<<10)}
	r.archive = tar.NewReader(io.TeeReader(from, &r.ahead))
	return r, nil
}

// layerReader passes an archive on behind the tar.Reader that checks it.
type layerReader struct {
	io.Closer
	from    io.Reader
	layer   boundedLayer
	archive *tar.Reader
	ahead   bytes.Buffer // read by archive, not passed on yet
	chunk   []byte
	content bool // archive is in an entry's content
	ended   bool // archive has seen its end: what follows is passed on unseen, for the layer's digest
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
	if err != nil {
		return fmt.Errorf("read archive: %w", err)
	}
	size := len(h.Name)
	if _, ok := h.PAXRecords["path"]; ok { // the name is a part of all records, which it keeps
		size += r.ahead.Len()
	}
	err = errors.Join(treetar.CheckName(h.Name), treetar.CheckName(h.Linkname), r.layer.names.keep(size))
	if err != nil {
		return fmt.Errorf("archive entry: %w", err)
	}
	r.content = true
	return nil
}
