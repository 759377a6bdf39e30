package build

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/host/invalid"
)

// If the name of an image is invalid or its registry is unreachable, the build fails.
func TestBootImage(t *testing.T) {
	t.Setenv("FORKD_CACHE", t.TempDir())
	for reference, want := range map[string]string{"": "", "Not An Image": "", "127.0.0.1:1/x:y": "127.0.0.1:1"} {
		_, err := (&Images{}).Boot(t.Context(), Image{Reference: reference, DiskMiB: ImageDiskMiB}, func(string) {})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", reference, err)
		}
	}
}

// A compressed archive may expand to any size. So a build context accepts only a limited number of
// bytes, whatever the archive contains.
func TestUnpackIsBounded(t *testing.T) {
	var z bytes.Buffer
	c := gzip.NewWriter(&z)
	w := tar.NewWriter(c)
	for _, name := range []string{"a", "b"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 1 << 10}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 1<<10)); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	c.Close()
	for _, left := range []int64{2 << 10, 2<<10 - 1} {
		ctx := newContext(t)
		ctx.left = left
		for n, dir := range []string{"one", "two"} {
			err := ctx.Unpack(t.Context(), bytes.NewReader(z.Bytes()), dir)
			var bad *invalid.Error
			if over := n > 0 || left < 2<<10; errors.As(err, &bad) != over {
				t.Errorf("%d bytes, archive %d: %v", left, n, err)
			}
		}
	}
	ctx := newContext(t)
	ctx.unpacked.Store(maxUnpacked - 6<<10)
	for n, dir := range []string{"one", "two", "three"} { // each archive has 4 KiB
		err := ctx.Unpack(t.Context(), bytes.NewReader(z.Bytes()), dir)
		var bad *invalid.Error
		if over := n > 0; errors.As(err, &bad) != over {
			t.Errorf("archive %d, when others have taken almost all: %v", n, err)
		}
	}
	if _, err := (&sent{total: maxUnpacked, r: strings.NewReader("x")}).Read(make([]byte, 1)); err == nil {
		t.Error("an archive has no bound")
	}
}
