package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/forkd/forkd/internal/proto/imageproto"
)

// source is a layer that is written to a stream of package imageproto.
type source struct {
	imageproto.Layer
	name string // name of the layer in errors
	open func() (io.ReadCloser, error)
}

// writeStream writes layers, followed by the files of r as a last layer, as a stream of package
// imageproto.
func writeStream(ctx context.Context, w io.Writer, r *Recipe, layers ...source) error {
	if len(r.files) > 0 {
		layers = append(layers, source{imageproto.Layer{Files: true}, "files of the recipe",
			func() (io.ReadCloser, error) { return tarOf(r.files), nil }})
	}
	h := imageproto.Header{User: r.User}
	for _, l := range layers {
		h.Layers = append(h.Layers, l.Layer)
	}
	if err := h.Check(); err != nil {
		return fmt.Errorf("the container image is damaged: %w", err)
	}
	if err := imageproto.WriteHeader(w, h); err != nil {
		return err
	}
	for _, l := range layers {
		if err := writeLayer(ctx, w, l.open); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
	}
	return nil
}

func writeLayer(ctx context.Context, w io.Writer, open func() (io.ReadCloser, error)) error {
	from, err := open()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = from.Close() })
	defer stop()
	err = imageproto.WriteLayer(w, from)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return errors.Join(err, from.Close())
}

// tarOf returns an archive of files.
func tarOf(files []overlayFile) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		out := tar.NewWriter(w)
		var err error
		for _, o := range files {
			h := &tar.Header{Typeflag: o.typ, Name: o.name, Mode: o.mode, Size: int64(len(o.data)), Linkname: o.link,
				Format: tar.FormatPAX}
			if err = out.WriteHeader(h); err == nil {
				_, err = out.Write(o.data)
			}
			if err != nil {
				break
			}
		}
		w.CloseWithError(errors.Join(err, out.Close()))
	}()
	return r
}
