package guestmem

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

const mib = 1 << 20

func newMemory(t *testing.T, size uint64) *Memory {
	t.Helper()
	m, err := New(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func TestRegionsSplitAroundTheDeviceHole(t *testing.T) {
	m := newMemory(t, uint64(HoleStart)+mib)
	r := m.Regions()
	if len(r) != 2 || r[1].GPA != HoleEnd || r[1].Size != mib {
		t.Fatalf("regions %+v", r)
	}
	if err := m.WriteAt([]byte("above"), HoleEnd+mib-5); err != nil {
		t.Fatal(err)
	}
	if Linear(HoleEnd) != uint64(HoleStart) || Linear(HoleStart-1) != uint64(HoleStart-1) {
		t.Fatal("linear offsets do not skip the hole")
	}
}

func TestAccessOutsideARegionFails(t *testing.T) {
	m := newMemory(t, mib)
	for _, c := range []struct {
		gpa GPA
		n   int
	}{{mib, 1}, {mib - 1, 2}, {^GPA(0), 1}, {^GPA(0) - 3, 8}, {0, mib + 1}, {0, -1}, {HoleEnd, 1}} {
		if _, err := m.ReadView(c.gpa, c.n); !errors.Is(err, ErrBounds) {
			t.Errorf("%d bytes at %#x: %v", c.n, uint64(c.gpa), err)
		}
	}
	if _, err := m.LoadUint16(1); !errors.Is(err, ErrBounds) {
		t.Errorf("odd word: %v", err)
	}
	if err := m.StoreUint16(mib, 1); !errors.Is(err, ErrBounds) {
		t.Errorf("word past the end: %v", err)
	}
}

func TestStoreUint16KeepsItsNeighbour(t *testing.T) {
	m := newMemory(t, mib)
	for gpa := GPA(0); gpa < 8; gpa += 2 {
		if err := m.StoreUint16(gpa, uint16(0x1111*(gpa+1))); err != nil {
			t.Fatal(err)
		}
	}
	for gpa := GPA(0); gpa < 8; gpa += 2 {
		if v, err := m.LoadUint16(gpa); err != nil || v != uint16(0x1111*(gpa+1)) {
			t.Fatalf("word at %d = %#x, %v", gpa, v, err)
		}
	}
}

// layerFile returns a file of the given size on tmpfs. All bytes of the file have the value fill.
func layerFile(t *testing.T, size int, fill byte) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(shm(t), "layer"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(bytes.Repeat([]byte{fill}, size)); err != nil {
		t.Fatal(err)
	}
	return f
}

func shm(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "guestmem-test-")
	if err != nil {
		t.Skipf("no tmpfs: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestDirtyFindsExactlyTheWrittenPages(t *testing.T) {
	for _, noScan := range []bool{false, true} {
		m := newMemory(t, 8*mib)
		f := layerFile(t, 4*mib, 0xaa)
		if err := m.Map(mib, 4*mib, int(f.Fd()), 0); err != nil {
			t.Fatal(err)
		}
		tr, err := NewTracker("/proc")
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		tr.noScan = noScan
		// Pages of the file count only if they were written, and not if they were only read.
		// Written anonymous pages also count.
		sum := byte(0)
		v, _ := m.ReadView(mib, 2*mib)
		for i := 0; i < len(v); i += PageSize {
			sum += v[i]
		}
		if sum != byte(0xaa*len(v)/PageSize&0xff) {
			t.Fatalf("layer contents differ: %#x", sum)
		}
		want := []Range{{0, PageSize}, {mib, PageSize}, {2*mib + 3*PageSize, 2 * PageSize}, {7 * mib, PageSize}}
		for _, r := range want {
			for off := uint64(0); off < r.Length; off += PageSize {
				if err := m.WriteAt([]byte{1}, r.GPA+GPA(off)); err != nil {
					t.Fatal(err)
				}
			}
		}
		got, err := tr.Dirty(m)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want) {
			t.Fatalf("noScan=%v: dirty %+v, want %+v", noScan, got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("noScan=%v: dirty %+v, want %+v", noScan, got, want)
			}
		}
		var back [1]byte
		if _, err := f.ReadAt(back[:], 0); err != nil || back[0] != 0xaa {
			t.Fatalf("a guest write reached the layer file: %#x, %v", back[0], err)
		}
	}
}

func TestMapAndClearReplaceContents(t *testing.T) {
	m := newMemory(t, mib)
	f := layerFile(t, 2*PageSize, 0x55)
	if err := m.WriteAt([]byte{9}, 0); err != nil {
		t.Fatal(err)
	}
	if err := m.Map(0, PageSize, int(f.Fd()), PageSize); err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	if err := m.ReadAt(b[:], 0); err != nil || b[0] != 0x55 {
		t.Fatalf("after map: %#x, %v", b[0], err)
	}
	if err := m.Clear(0, PageSize); err != nil {
		t.Fatal(err)
	}
	if err := m.ReadAt(b[:], 0); err != nil || b[0] != 0 {
		t.Fatalf("after clear: %#x, %v", b[0], err)
	}
	if m.Map(0, 1, int(f.Fd()), 0) == nil || m.Map(0, 2*mib, int(f.Fd()), 0) == nil {
		t.Fatal("bad ranges were mapped")
	}
}

// Pages that OwnNow has copied count as written, keep their content, and no longer belong to the
// file.
func TestOwnNow(t *testing.T) {
	f := layerFile(t, mib, 0xaa)
	tr, err := NewTracker("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	m := newMemory(t, 2*mib)
	if err := m.Map(0, mib, int(f.Fd()), 0); err != nil {
		t.Fatal(err)
	}
	want := []Range{{GPA: PageSize, Length: 2 * PageSize}, {GPA: mib - PageSize, Length: 2 * PageSize}}
	for _, r := range want {
		if err := m.OwnNow(r.GPA, r.Length); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := tr.Dirty(m); err != nil || !slices.Equal(got, want) {
		t.Errorf("written: %v, want %v, %v", got, want, err)
	}
	got := make([]byte, 2*PageSize)
	if err := m.ReadAt(got, PageSize); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{0xaa}, len(got))) {
		t.Errorf("the bytes are not what they were (%v)", err)
	}
	if m.OwnNow(0, 4*mib) == nil || m.OwnNow(2*mib, PageSize) == nil || m.OwnNow(0, 1<<63) == nil ||
		m.OwnNow(1, PageSize) == nil {
		t.Error("pages that there are not were copied")
	}
}

// A released page has the content of the layer below it again, and is no longer dirty. A page that
// is only partly in the view is kept.
func TestReleaseUncoversTheLayer(t *testing.T) {
	m := newMemory(t, mib)
	layer, err := os.Create(filepath.Join(t.TempDir(), "layer"))
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	const half = mib / 2
	if _, err := layer.Write(bytes.Repeat([]byte("below"), half/5+1)[:half]); err != nil {
		t.Fatal(err)
	}
	if err := m.Map(0, half, int(layer.Fd()), 0); err != nil {
		t.Fatal(err)
	}
	all, err := m.WriteView(0, mib)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		all[i] = 'x'
	}
	m.Release(all[100 : mib-100])
	tracker, err := NewTracker("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer tracker.Close()
	dirty, err := tracker.Dirty(m)
	want := []Range{{0, PageSize}, {mib - PageSize, PageSize}}
	if err != nil || !slices.Equal(dirty, want) {
		t.Errorf("dirty: %v, want %v, %v", dirty, want, err)
	}
	if all[0] != 'x' || all[mib-1] != 'x' {
		t.Error("a page at the edge was released")
	}
	below := bytes.Repeat([]byte("below"), half/5+1)
	if !bytes.Equal(all[PageSize:half], below[PageSize:half]) ||
		!bytes.Equal(all[half:mib-PageSize], make([]byte, half-PageSize)) {
		t.Error("released pages do not have the content below them")
	}
	m.Release(all[1:PageSize]) // no whole page
	m.Release(nil)
}

// Detach copies the present content of the pages, one part at a time.
func TestDetachNeedsLittleMemory(t *testing.T) {
	const size = 16 * mib
	f, err := os.Create(filepath.Join(t.TempDir(), "layer"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	layer := bytes.Repeat([]byte("layer..."), size/8)
	if _, err := f.Write(layer); err != nil {
		t.Fatal(err)
	}
	m := newMemory(t, size)
	if err := errors.Join(m.Map(0, size, int(f.Fd()), 0), m.Own(0, size)); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := m.Detach(PageSize, size-PageSize); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > size/4 {
		t.Errorf("%d bytes for a copy of %d", n, size)
	}
	if err := f.Truncate(PageSize); err != nil { // reading a page that is still mapped from the file now fails
		t.Fatal(err)
	}
	if got, err := m.ReadView(0, size); err != nil || !bytes.Equal(got, layer) {
		t.Errorf("the bytes are not what they were (%v)", err)
	}
}
