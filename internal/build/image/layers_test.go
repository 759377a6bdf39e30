package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// A layer is refused for its names before anything processes them. The filter behind it refuses
// them too, from any source.
func TestNamesOfLayers(t *testing.T) {
	long := func(n int) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: strings.Repeat("a/", n/2) + "b", Linkname: "x"}
	}
	for what, h := range map[string]tar.Header{
		"a long name":   long(64 << 10),
		"a deep name":   long(1000),
		"a long part":   reg("a/" + strings.Repeat("x", 300)),
		"a long target": {Typeflag: tar.TypeLink, Name: "l", Linkname: strings.Repeat("a/", 4096) + "b"},
	} {
		layer := archive(t, reg("first"), h)
		err := writeContainer(t.Context(), io.Discard, containerOf(t, layer), false)
		if err == nil || !strings.Contains(err.Error(), "want at most") {
			t.Errorf("%s in a layer: %v", what, err)
		}
		if _, err := filterAll(&tarFilter{}, layer); err == nil || !strings.Contains(err.Error(), "want at most") {
			t.Errorf("%s in the filter: %v", what, err)
		}
	}
}

// The memory kept for names is bounded, even if a name keeps a large header alive.
func TestNamesTogether(t *testing.T) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for i := range 160 { // of almost a MiB each
		h := &tar.Header{Typeflag: tar.TypeSymlink, Name: "ü" + strings.Repeat("x", i), Linkname: "x",
			PAXRecords: map[string]string{"SCHILY.xattr.user.x": strings.Repeat("x", 1000<<10)}}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	err := writeContainer(t.Context(), io.Discard, containerOf(t, layer.Bytes()), false)
	if err == nil || !strings.Contains(err.Error(), "the names of the image's files") {
		t.Errorf("names that keep 160 MiB: %v", err)
	}
}

// If nothing of a layer is written, no write can fail. Reading still stops with the context.
func TestLayersEndWithTheirContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	image := boundedImage{Image: containerOf(t, archive(t, reg(".wh.a"), reg(".wh.b"))), ctx: ctx}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatal(layers, err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadAll(r); !errors.Is(err, context.Canceled) {
		t.Errorf("read after the end: %v", err)
	}
}

// A layer is passed on byte for byte, including the data after the archive's end, because the
// digest covers that data too.
func TestLayersAreUnchanged(t *testing.T) {
	in := append(archive(t, reg("a"), tar.Header{Typeflag: tar.TypeReg, Name: "big", Size: 100_000},
		tar.Header{Typeflag: tar.TypeDir, Name: "d/"}), "behind the end"...)
	layers, err := boundedImage{Image: containerOf(t, in), ctx: t.Context()}.Layers()
	if err != nil {
		t.Fatal(err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if out, err := io.ReadAll(r); err != nil || !bytes.Equal(in, out) {
		t.Errorf("%d bytes of %d, %v", len(out), len(in), err)
	}
}
