package disklayer

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func formatted(t *testing.T, size uint64) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "top"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := Format(f, size); err != nil {
		t.Fatal(err)
	}
	return f
}

func open(t *testing.T, f *os.File) *Layer {
	t.Helper()
	l, err := Open(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// TestBitmapAgreesWithModel sets random ranges, reopens the layer occasionally, and compares Has
// and Run with a slice.
func TestBitmapAgreesWithModel(t *testing.T) {
	const clusters = 3*clustersPerPage + 17
	f := formatted(t, clusters*ClusterSize-512)
	l := open(t, f)
	model := make([]bool, clusters)
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 60 {
		first := rng.Uint64N(clusters)
		n := 1 + rng.Uint64N(min(clusters-first, 1+rng.Uint64N(2000)))
		if err := l.Set(first, n); err != nil {
			t.Fatal(err)
		}
		for i := first; i < first+n; i++ {
			model[i] = true
		}
		if round%10 == 0 {
			l = open(t, f)
		}
		for range 200 {
			c := rng.Uint64N(clusters)
			limit := 1 + rng.Uint64N(clusters)
			want := uint64(1)
			for want < limit && (c+want < clusters && model[c+want] == model[c] || c+want >= clusters && !model[c]) {
				want++
			}
			if has, n := l.Run(c, limit); has != model[c] || n != want {
				t.Fatalf("Run(%d, %d) = %v, %d, want %v, %d", c, limit, has, n, model[c], want)
			}
		}
	}
}

func TestEmptyBitmapStaysSparse(t *testing.T) {
	f := formatted(t, 1<<40)
	l := open(t, f)
	if has, n := l.Run(0, 1<<28); has || n != 1<<28 {
		t.Fatalf("empty layer: %v, %d", has, n)
	}
	for _, p := range l.present {
		if p {
			t.Fatal("an empty layer has bitmap pages")
		}
	}
	if l.Set(1<<28, 1) == nil || l.Set(^uint64(0), 2) == nil {
		t.Fatal("a cluster beyond the disk was marked")
	}
}

func TestOpenRefusesWhatIsNoLayer(t *testing.T) {
	const size = 1 << 20
	_, _, fileSize := Layout(size)
	cases := map[string]struct {
		damage func(f *os.File) error
		reason string
	}{
		"empty":     {func(f *os.File) error { return f.Truncate(0) }, "too short"},
		"truncated": {func(f *os.File) error { return f.Truncate(int64(fileSize) - 4096) }, "truncated"},
		"grown":     {func(f *os.File) error { return f.Truncate(int64(fileSize) + 4096) }, "truncated"},
		"version": {func(f *os.File) error {
			_, err := f.WriteAt([]byte{9}, int64(fileSize)-FooterSize+8)
			return err
		}, "version 9"},
		"size": {func(f *os.File) error {
			_, err := f.WriteAt([]byte{1}, int64(fileSize)-FooterSize+16)
			return err
		}, "checksum"},
		"length": {func(f *os.File) error {
			footer := encodeFooter(2 * size)
			_, err := f.WriteAt(footer[:], int64(fileSize)-FooterSize)
			return err
		}, "asks for"},
	}
	for name, c := range cases {
		f := formatted(t, size)
		if err := c.damage(f); err != nil {
			t.Fatal(err)
		}
		_, err := Open(f)
		if _, size := SizeOf(f); size == nil || !errors.Is(size, ErrFormat) {
			t.Errorf("%s: SizeOf: %v", name, size)
		}
		if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), c.reason) ||
			!strings.Contains(err.Error(), f.Name()) {
			t.Errorf("%s: %v, want %q", name, err, c.reason)
		}
	}
}

func TestSizeOf(t *testing.T) {
	for _, want := range []uint64{512, 3*ClusterSize - 512, 1 << 40} {
		if size, err := SizeOf(formatted(t, want)); err != nil || size != want {
			t.Errorf("%d, %v, want %d", size, err, want)
		}
	}
}

func TestFormatRefusesBadSizes(t *testing.T) {
	f := formatted(t, 512)
	for _, size := range []uint64{0, 513, MaxSize + 512} {
		if Format(f, size) == nil {
			t.Errorf("size %d was accepted", size)
		}
	}
}
