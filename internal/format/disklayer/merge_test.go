package disklayer

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
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

// A merged layer reads like the stack of its layers.
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
	if err := Merge(t.Context(), dst, files); err != nil {
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
	if err := Merge(t.Context(), dst, nil); err == nil {
		t.Error("merged nothing")
	}
}

// A VMM that has a layer open for writing can truncate it at any time. Merge then returns an error.
// If Merge mapped the layer, the daemon would be killed.
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
		// addTo does not read the footer, so it succeeds if only the footer's last byte is missing.
		if err := s.addTo(t.Context(), merged); (err == nil) != (left == int64(fileSize)-1) {
			t.Errorf("cut to %d bytes while it is merged: %v", left, err)
		}
		if err := merged.Close(); err != nil {
			t.Fatal(err)
		}
		if err := Merge(t.Context(), newFile(t), []*os.File{f}); !errors.Is(err, ErrFormat) {
			t.Errorf("cut to %d bytes before: %v", left, err)
		}
	}
}

// layerOf makes a layer of a disk. A run has the number of its first cluster, the number of
// clusters, and the value of their bytes. If the value is 0, the clusters are discarded.
func layerOf(t *testing.T, size uint64, runs ...[3]uint64) *os.File {
	t.Helper()
	f := newFile(t)
	if err := Format(f, size); err != nil {
		t.Fatal(err)
	}
	l, err := Open(f)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, run := range runs {
		first, n, value := run[0], run[1], run[2]
		at, length := int64(first*ClusterSize), int64(n*ClusterSize)
		if value == 0 {
			err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, length)
		} else {
			_, err = f.WriteAt(bytes.Repeat([]byte{byte(value)}, int(length)), at)
		}
		if err = errors.Join(err, l.Set(first, n)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func allocated(t *testing.T, f *os.File) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// Clusters that a guest has discarded take no space, in its tops and in the merged layer.
func TestMergedDiscardsTakeNoSpace(t *testing.T) {
	const size = 2 << 30
	top := layerOf(t, size, [3]uint64{0, size / ClusterSize, 0})
	dst := newFile(t)
	if err := Merge(t.Context(), dst, []*os.File{top}); err != nil {
		t.Fatal(err)
	}
	if a, b := allocated(t, top), allocated(t, dst); b > a+64<<10 {
		t.Errorf("the top takes %d KiB, the merged layer %d KiB", a>>10, b>>10)
	}
	l, err := Open(dst)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if has, n := l.Run(0, size/ClusterSize); !has || n != size/ClusterSize {
		t.Errorf("marked: %v, for %d clusters", has, n)
	}
}

// The highest layer that has a cluster decides whether the cluster is data or discarded. A
// discarded cluster takes no space in the merged layer, whatever the lower layers have.
func TestMergeOfWritesAndDiscards(t *testing.T) {
	const clusters = 2000
	r := rand.New(rand.NewPCG(7, 8))
	want := map[uint64]uint64{}
	var layers []*os.File
	for i := range uint64(5) {
		var runs [][3]uint64
		for range 60 {
			first := r.Uint64N(clusters)
			run := [3]uint64{first, 1 + r.Uint64N(min(40, clusters-first)), (i + 1) * r.Uint64N(2)}
			runs = append(runs, run)
			for c := range run[1] {
				want[first+c] = run[2]
			}
		}
		layers = append(layers, layerOf(t, clusters*ClusterSize, runs...))
	}
	dst := newFile(t)
	if err := Merge(t.Context(), dst, layers); err != nil {
		t.Fatal(err)
	}
	m, err := Open(dst)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	written, p := 0, make([]byte, ClusterSize)
	for c := range uint64(clusters) {
		value, there := want[c]
		if value != 0 {
			written++
		}
		if _, err := dst.ReadAt(p, int64(c*ClusterSize)); err != nil || m.Has(c) != there ||
			!bytes.Equal(p, bytes.Repeat([]byte{byte(value)}, ClusterSize)) {
			t.Fatalf("cluster %d is %d…, in the layer %v; want %d, %v (%v)", c, p[0], m.Has(c), value, there, err)
		}
	}
	if most := int64(written)*ClusterSize + 64<<10; allocated(t, dst) > most {
		t.Errorf("%d clusters with content take %d KiB", written, allocated(t, dst)>>10)
	}
}

func TestMergeEndsWithItsContext(t *testing.T) {
	top := layerOf(t, 1<<20, [3]uint64{3, 1, 1})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Merge(ctx, newFile(t), []*os.File{top}); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}

// Merge does not move the offsets of the files that it reads, because other processes may share an
// offset, and may hold its lock for ever.
func TestMergeSharesNoOffset(t *testing.T) {
	f := newFile(t)
	if err := Format(f, 4*ClusterSize); err != nil {
		t.Fatal(err)
	}
	l, err := Open(f)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(bytes.Repeat([]byte{1}, ClusterSize), ClusterSize); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Set(1, 1), l.Close()); err != nil {
		t.Fatal(err)
	}
	again, err := os.Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	const offset = 3
	if _, err := again.Seek(offset, 0); err != nil {
		t.Fatal(err)
	}
	if err := Merge(t.Context(), newFile(t), []*os.File{again}); err != nil {
		t.Fatal(err)
	}
	if at, err := again.Seek(0, 1); err != nil || at != offset {
		t.Errorf("the offset is %d, %v", at, err)
	}
}
