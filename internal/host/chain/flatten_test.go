package chain

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/vm"
)

// A flattened layer has the same content as the map over all layers. The extents that flatten
// copies from other layers have no holes, even where the other layers have holes.
func TestFlatten(t *testing.T) {
	const pages = 600
	r := rand.New(rand.NewPCG(7, 8))
	size := int64(pages * vm.PageSize)
	var files []*os.File
	for range 3 {
		f, err := os.Create(filepath.Join(t.TempDir(), "layer"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	own := uint32(len(files) - 1)
	var extents []vm.Extent
	want := make([]byte, size)
	for page := uint64(0); page < pages; {
		n := min(1+r.Uint64N(300), pages-page)
		e := vm.Extent{GPA: page * vm.PageSize, Length: n * vm.PageSize, Layer: uint32(r.IntN(3)), Offset: page * vm.PageSize}
		for i := range n {
			if r.IntN(2) == 0 { // otherwise the page stays zero
				p := bytes.Repeat([]byte{byte(1 + e.Layer)}, vm.PageSize)
				if _, err := files[e.Layer].WriteAt(p, int64(e.Offset+i*vm.PageSize)); err != nil {
					t.Fatal(err)
				}
				copy(want[e.GPA+i*vm.PageSize:], p)
			}
		}
		extents = append(extents, e)
		page += n
	}
	flat, err := flatten(t.Context(), files[own], own, extents, files)
	if err != nil {
		t.Fatal(err)
	}
	if len(flat) != 1 || flat[0] != (vm.Extent{Length: uint64(size)}) {
		t.Errorf("the map is %+v", flat)
	}
	got, err := os.ReadFile(files[own].Name())
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the flattened layer differs (%v)", err)
	}
	for _, e := range extents {
		hole, err := files[own].Seek(int64(e.Offset), unix.SEEK_HOLE)
		if err != nil || e.Layer != own && uint64(hole) < e.Offset+e.Length {
			t.Errorf("a hole at %d inside %+v (%v)", hole, e, err)
		}
	}
}
