package disklayer

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// A merged layer reads like the stack of its parts.
func TestMerge(t *testing.T) {
	const clusters = 3000
	r := rand.New(rand.NewPCG(5, 6))
	want := make(map[uint64]byte)
	var files []*os.File
	create := func(name string) *os.File {
		f, err := os.Create(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	for i := range 4 {
		f := create("layer")
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
	dst := create("merged")
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
			if _, err := dst.ReadAt(p, int64(c*ClusterSize)); err != nil || !bytes.Equal(p, bytes.Repeat([]byte{want[c]}, ClusterSize)) {
				t.Fatalf("cluster %d is %d…, want %d (%v)", c, p[0], want[c], err)
			}
		}
	}
	if err := Merge(dst, nil); err == nil {
		t.Error("merged nothing")
	}
}
