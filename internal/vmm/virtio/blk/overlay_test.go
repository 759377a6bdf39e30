package blk

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/disklayer"
)

func newTop(t testing.TB, dir string, size uint64) *os.File {
	t.Helper()
	f, err := os.CreateTemp(dir, "top")
	if err != nil {
		t.Fatal(err)
	}
	if err := disklayer.Format(f, size); err != nil {
		t.Fatal(err)
	}
	return f
}

// newDisk returns a disk of size bytes. Its base image contains the bytes of base.
func newDisk(t testing.TB, size uint64, base []byte) *Overlay {
	t.Helper()
	dir := t.TempDir()
	name := filepath.Join(dir, "base")
	if err := os.WriteFile(name, base, 0o444); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	o, err := NewOverlay([]*os.File{f, newTop(t, dir, size)}, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

// TestOverlayAgreesWithModel applies random operations to an overlay and to a byte slice. From time
// to time it freezes the overlay's top.
func TestOverlayAgreesWithModel(t *testing.T) {
	const size = 40*cluster + 3*sectorSize
	rng := rand.New(rand.NewPCG(7, 7))
	base := make([]byte, 20*cluster+700)
	for i := range base {
		base[i] = byte(rng.Uint32())
	}
	pristine := bytes.Clone(base)
	o := newDisk(t, size, base)
	baseName := o.base.Name()
	model := make([]byte, size)
	copy(model, base)
	for step := range 3000 {
		off := rng.Uint64N(size/sectorSize) * sectorSize
		n := min(size-off, (1+rng.Uint64N(60))*sectorSize)
		stepWithModel(t, o, model, rng, off, n)
		if step%500 == 499 {
			if err := o.SwapTop(newTop(t, t.TempDir(), size), forReading(t, o.top)); err != nil {
				t.Fatal(err)
			}
		}
		if step%1000 == 999 {
			mergeFrom(t, o, step/2000)
		}
	}
	if now, err := os.ReadFile(baseName); err != nil || !bytes.Equal(now, pristine) {
		t.Fatalf("the base has changed (%v)", err)
	}
}

// stepWithModel applies one random operation to n bytes at off, in o and in the model, or compares
// these bytes of o and the model.
func stepWithModel(t *testing.T, o *Overlay, model []byte, rng *rand.Rand, off, n uint64) {
	t.Helper()
	switch rng.IntN(8) {
	case 0:
		if err := o.Zero(off, n); err != nil {
			t.Fatal(err)
		}
		clear(model[off : off+n])
	case 1:
		if err := o.Discard(off, n); err != nil {
			t.Fatal(err)
		}
		first, last := (off+cluster-1)/cluster*cluster, (off+n)/cluster*cluster
		if first < last {
			clear(model[first:last])
		}
	case 2, 3, 4:
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		cut := 1 + rng.Uint64N(n-1)
		if err := o.WriteV([][]byte{p[:cut], p[cut:]}, off); err != nil {
			t.Fatal(err)
		}
		copy(model[off:], p)
	default:
		p := make([]byte, n)
		cut := 1 + rng.Uint64N(n-1)
		if err := o.ReadV([][]byte{p[:cut], p[cut:]}, off); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p, model[off:off+n]) {
			t.Fatalf("%d bytes at %d differ", n, off)
		}
	}
}

// mergeFrom merges layers of o. The lowest of these layers has the given number (first), and the
// highest is just below the top.
func mergeFrom(t *testing.T, o *Overlay, first int) {
	t.Helper()
	var files []*os.File
	for _, l := range o.layers[first : len(o.layers)-1] {
		files = append(files, l.File())
	}
	if err := o.Merge(first, mergedFrom(t, files)); err != nil {
		t.Fatal(err)
	}
	if len(o.layers) != first+2 {
		t.Fatalf("%d layers after a merge from %d", len(o.layers), first)
	}
	for _, f := range files {
		if _, err := f.Stat(); err == nil {
			t.Error("a merged layer is still open")
		}
	}
}

// mergedFrom returns a layer with the combined content of the given layers.
func mergedFrom(t *testing.T, layers []*os.File) *os.File {
	t.Helper()
	merged, err := os.OpenFile(filepath.Join(t.TempDir(), "merged"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := disklayer.Merge(t.Context(), merged, layers); err != nil {
		t.Fatal(err)
	}
	return merged
}

func TestMergeRefusesNonsense(t *testing.T) {
	o := newDisk(t, 8*cluster, nil)
	merged := newTop(t, t.TempDir(), 8*cluster)
	for _, first := range []int{-1, 0, 1, 100} {
		if o.Merge(first, merged) == nil {
			t.Errorf("layers from %d of a disk with a top alone are merged", first)
		}
	}
	if err := o.SwapTop(newTop(t, t.TempDir(), 8*cluster), forReading(t, o.top)); err != nil {
		t.Fatal(err)
	}
	if o.Merge(0, newTop(t, t.TempDir(), 9*cluster)) == nil {
		t.Error("a layer of another disk is taken")
	}
	if err := o.Merge(0, merged); err != nil {
		t.Error(err)
	}
}

func TestSwapTopFreezesTheOldOne(t *testing.T) {
	o := newDisk(t, 8*cluster, nil)
	if err := o.WriteV([][]byte{bytes.Repeat([]byte{1}, cluster)}, 0); err != nil {
		t.Fatal(err)
	}
	frozen := o.top.File().Name()
	before, err := os.ReadFile(frozen)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.SwapTop(newTop(t, t.TempDir(), 8*cluster), forReading(t, o.top)); err != nil {
		t.Fatal(err)
	}
	if err := o.WriteV([][]byte{bytes.Repeat([]byte{2}, 100)}, 50); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(frozen); err != nil || !bytes.Equal(before, after) {
		t.Fatalf("the frozen layer has changed (%v)", err)
	}
	// Linux grants this lease only if no process has the file open or mapped for writing.
	reader := forReading(t, o.layers[0])
	defer reader.Close()
	if _, err := unix.FcntlInt(reader.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		t.Errorf("the frozen layer can still be written: %v", err)
	}
}

// If a swap fails, it changes nothing.
func TestSwapTopRefusesWrongFiles(t *testing.T) {
	o := newDisk(t, 8*cluster, nil)
	other := newTop(t, t.TempDir(), 8*cluster)
	defer other.Close()
	for name, files := range map[string][2]*os.File{
		"a top of another size": {newTop(t, t.TempDir(), 9*cluster), forReading(t, o.top)},
		"another file to read":  {newTop(t, t.TempDir(), 8*cluster), other},
		"no file to read":       {newTop(t, t.TempDir(), 8*cluster), nil},
	} {
		before := o.top
		if err := o.SwapTop(files[0], files[1]); err == nil || o.top != before || len(o.layers) != 1 {
			t.Errorf("%s: %v, %d layers", name, err, len(o.layers))
		}
		if err := o.WriteV([][]byte{make([]byte, cluster)}, 0); err != nil {
			t.Errorf("%s: the disk afterwards: %v", name, err)
		}
		for _, f := range files {
			f.Close() // Close of a nil file only returns an error
		}
	}
}

// forReading opens the file of a layer again.
func forReading(t testing.TB, l *disklayer.Layer) *os.File {
	t.Helper()
	f, err := os.Open(l.File().Name())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestNewOverlayRefusesBadFiles(t *testing.T) {
	dir := t.TempDir()
	open := func(i int) *os.File {
		f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	for i, c := range []struct {
		files []*os.File
		size  uint64
	}{
		{nil, cluster},
		{[]*os.File{open(0)}, cluster},
		{[]*os.File{open(1), open(2)}, cluster},
		{[]*os.File{open(3), newTop(t, dir, 2*cluster)}, cluster},
		{[]*os.File{open(4), newTop(t, dir, cluster)}, 100},
	} {
		if o, err := NewOverlay(c.files, c.size); err == nil {
			o.Close()
			t.Errorf("case %d was accepted", i)
		}
		for _, f := range c.files {
			if f.Close() == nil {
				t.Errorf("case %d: %s was left open", i, f.Name())
			}
		}
	}
}
