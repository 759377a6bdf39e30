package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"

	"github.com/forkd/forkd/internal/treetar"
)

// imageOf returns an image with a layer of these compressed bytes.
func imageOf(t *testing.T, compressed []byte) v1.Image {
	t.Helper()
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(compressed)), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// allocated returns how much f allocates, in bytes.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Extended headers that no entry follows are refused after some MiB, and not kept.
func TestHeadersOfLayersAreBounded(t *testing.T) {
	var one bytes.Buffer
	err := tar.NewWriter(&one).WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "x",
		PAXRecords: map[string]string{"SCHILY.xattr.user.x": strings.Repeat("x", 1000<<10)}})
	if err != nil {
		t.Fatal(err)
	}
	var z bytes.Buffer
	c := gzip.NewWriter(&z)
	for range 100 {
		c.Write(one.Bytes()[:one.Len()-512])
	}
	c.Write(one.Bytes()[one.Len()-512:])
	c.Write(make([]byte, 1024))
	c.Close()
	img := imageOf(t, z.Bytes())
	n := allocated(func() { err = writeContainer(t.Context(), io.Discard, img, false) })
	if !errors.Is(err, treetar.ErrHeaders) || n > 64<<20 {
		t.Errorf("%v; a layer of %d KiB allocates %d MiB", err, z.Len()>>10, n>>20)
	}
}

// A layer of zstd is read as others are, and refused if its window has more than 128 MiB.
func TestWindowsOfLayersAreBounded(t *testing.T) {
	for _, c := range []struct {
		window int
		fails  bool
	}{{8 << 20, false}, {zstd.MaxWindowSize, true}} {
		var z bytes.Buffer
		e, err := zstd.NewWriter(&z, zstd.WithWindowSize(c.window), zstd.WithSingleSegment(false))
		if err != nil {
			t.Fatal(err)
		}
		text := archive(t, reg("first"))
		e.Write(text[:700])
		e.Flush() // so that the size is not known when the frame begins
		e.Write(text[700:])
		e.Close()
		img := imageOf(t, z.Bytes())
		n := allocated(func() { err = writeContainer(t.Context(), io.Discard, img, false) })
		if errors.Is(err, zstd.ErrWindowSizeExceeded) != c.fails || !c.fails && err != nil || n > 64<<20 {
			t.Errorf("a window of %d MiB: %v, %d MiB allocated", c.window>>20, err, n>>20)
		}
	}
}
