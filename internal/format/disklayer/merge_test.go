package disklayer

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

func newFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// A merged layer reads like the stack of its parts.
func TestMerge(t *testing.T) {
	const clusters = 3000
	r := rand.New(rand.NewPCG(5, 6))
	want := make(map[uint64]byte)
	var files []*os.File
	for i := range 4 {
		f := newFile(t)
		if err := Format(f, clusters*ClusterSize-512); err != nil {
			t.Fatal(err)
		}
		l, err := Open(f)
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			c, n := r.Uint64N(clusters), uint64(1)
			if _, err := f.WriteAt(bytes.Repeat([]byte{byte(i + 1)}, ClusterSize), int64(c*ClusterSize)); err != nil {
				t.Fatal(err)
			}
			if err := l.Set(c, n); err != nil {
				t.Fatal(err)
			}
			want[c] = byte(i + 1)
		}
		l.Close()
		files = append(files, f)
	}
	dst := newFile(t)
	if err := Merge(dst, files); err != nil {
		t.Fatal(err)
	}
	m, err := Open(dst)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for c := range uint64(clusters) {
		if m.Has(c) != (want[c] != 0) {
			t.Fatalf("cluster %d: in the layer %v, content %d", c, m.Has(c), want[c])
		}
		if want[c] != 0 {
			p := make([]byte, ClusterSize)
			if _, err := dst.ReadAt(p, int64(c*ClusterSize)); err != nil || !bytes.Equal(p,
				bytes.Repeat([]byte{want[c]}, ClusterSize)) {
				t.Fatalf("cluster %d is %d…, want %d (%v)", c, p[0], want[c], err)
			}
		}
	}
	if err := Merge(dst, nil); err == nil {
		t.Error("merged nothing")
	}
}

// A VMM that holds a layer open for writing can cut it off at any time. That is an error: mapped,
// it would end the daemon.
func TestMergeOfALayerThatIsCutOff(t *testing.T) {
	const size = 8 << 20
	_, _, fileSize := Layout(size)
	for _, left := range []int64{0, ClusterSize, size, int64(fileSize) - 1} {
		f := newFile(t)
		if err := Format(f, size); err != nil {
			t.Fatal(err)
		}
		l, err := Open(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(make([]byte, ClusterSize), 5*ClusterSize); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(l.Set(5, 1), l.Close()); err != nil {
			t.Fatal(err)
		}
		s, err := openSource(f)
		if err != nil {
			t.Fatal(err)
		}
		dst := newFile(t)
		if err := Format(dst, size); err != nil {
			t.Fatal(err)
		}
		merged, err := Open(dst)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(left); err != nil {
			t.Fatal(err)
		}
		// The footer was read before: without it the rest is still whole.
		if err := s.addTo(merged); (err == nil) != (left == int64(fileSize)-1) {
			t.Errorf("cut to %d bytes while it is merged: %v", left, err)
		}
		if err := merged.Close(); err != nil {
			t.Fatal(err)
		}
		if err := Merge(newFile(t), []*os.File{f}); !errors.Is(err, ErrFormat) {
			t.Errorf("cut to %d bytes before: %v", left, err)
		}
	}
}
