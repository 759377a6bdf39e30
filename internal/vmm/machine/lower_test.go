package machine

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// Each pause detaches a part of the pages of old layers. After the last part, the files of these
// layers are no longer needed.
func TestDetachInParts(t *testing.T) {
	const size, page = 64 * guestmem.PageSize, guestmem.PageSize
	mem, err := guestmem.New(size)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	f, err := os.CreateTemp(t.TempDir(), "layer")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	content := bytes.Repeat([]byte("layer..."), size/8)
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := mem.Map(0, size, int(f.Fd()), 0); err != nil {
		t.Fatal(err)
	}
	l := newLower(nil, 1)
	l.rebased([]guestmem.Range{{GPA: page, Length: 10 * page}, {GPA: 20 * page, Length: 3 * page}})
	if err := mem.Own(0, size); err != nil {
		t.Fatal(err)
	}
	if any, err := l.detach(mem, size); any || err != nil {
		t.Errorf("a layer in use: %v, %v", any, err)
	}
	l.owned = l.layers
	l.rebased(nil) // makes the remaining pages of the first layer stale
	extent := func(first, n uint64) vm.Extent {
		return vm.Extent{GPA: first * page, Length: n * page, Layer: 1, Offset: first * page}
	}
	for _, pause := range []struct {
		pages uint64
		left  []vm.Extent
	}{
		{8, []vm.Extent{extent(9, 2), extent(20, 3)}},
		{4, []vm.Extent{extent(22, 1)}},
		{1, nil},
	} {
		if any, err := l.detach(mem, pause.pages*page); !any || err != nil || !slices.Equal(l.mapped, pause.left) {
			t.Errorf("%d pages: %v, %v; left %+v, want %+v", pause.pages, any, err, l.mapped, pause.left)
		}
	}
	if any, err := l.detach(mem, size); any || err != nil {
		t.Errorf("nothing is left: %v, %v", any, err)
	}
	if got, err := mem.ReadView(0, size); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the bytes are not what they were (%v)", err)
	}
}

// A rebase stays within the process's limit of mappings, even if no pause has removed stale
// mappings yet.
func TestMappingsAreBounded(t *testing.T) {
	const page = guestmem.PageSize
	l := newLower(nil, 0)
	replace := func(first, n int) { // replaces every other page
		ranges := make([]guestmem.Range, n)
		for i := range ranges {
			ranges[i] = guestmem.Range{GPA: guestmem.GPA((first + 2*i) * page), Length: page}
		}
		l.rebased(ranges)
	}
	for line := range 5 {
		if n := l.room(); n < 0 || n > maxMappings/2 || line == 0 && n < maxMappings/2-1 {
			t.Fatalf("line %d: room for %d ranges", line, n)
		}
		replace(line*maxMappings, l.room())
		if lasting, all := l.mappings(); lasting > maxMappings+2 || all > 2*maxMappings+2 {
			t.Errorf("line %d: %d mappings, %d of them to stay", line, all, lasting)
		}
		l.owned = l.layers // a branch does this too, but here no pause removes mappings
	}
}
