package snapshot

import (
	"encoding/hex"
	"slices"
	"testing"

	"github.com/forkd/forkd/internal/format/memlayer"
	"github.com/forkd/forkd/internal/proto/vm"
)

func sampleMap() ([]vm.Extent, []uint64, uint64) {
	return []vm.Extent{
		{GPA: 0, Length: 2 * vm.PageSize, Layer: 0, Offset: 0},
		{GPA: 4 * vm.PageSize, Length: vm.PageSize, Layer: 1, Offset: vm.PageSize},
	}, []uint64{2 * vm.PageSize, 2 * vm.PageSize}, 8 * vm.PageSize
}

func TestMemoryMapRoundTrip(t *testing.T) {
	extents, sizes, end := sampleMap()
	p, err := EncodeMemoryMap(extents, sizes, end)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseMemoryMap(p, sizes, end)
	if err != nil || !slices.Equal(got, extents) {
		t.Fatalf("got %v, %v", got, err)
	}
}

// The encoding of memory.map must never change, even if the encoding of messages between processes
// changes.
func TestMemoryMapBytes(t *testing.T) {
	extents, sizes, end := sampleMap()
	p, err := EncodeMemoryMap(extents, sizes, end)
	if err != nil {
		t.Fatal(err)
	}
	const want = "464f524b444d4150" + "01000000" + "02000000" +
		"0000000000000000" + "0020000000000000" + "00000000" + "0000000000000000" +
		"0040000000000000" + "0010000000000000" + "01000000" + "0010000000000000"
	if got := hex.EncodeToString(p[:len(p)-mapCRCSize]); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestMemoryMapDamageIsRefused(t *testing.T) {
	extents, sizes, end := sampleMap()
	p, err := EncodeMemoryMap(extents, sizes, end)
	if err != nil {
		t.Fatal(err)
	}
	for n := range p {
		if _, err := ParseMemoryMap(p[:n], sizes, end); err == nil {
			t.Fatalf("cut to %d of %d bytes: accepted", n, len(p))
		}
	}
	for i := range p {
		for bit := range 8 {
			p[i] ^= 1 << bit
			if _, err := ParseMemoryMap(p, sizes, end); err == nil {
				t.Fatalf("bit %d of byte %d flipped: accepted", bit, i)
			}
			p[i] ^= 1 << bit
		}
	}
	if _, err := ParseMemoryMap(append(p, 0), sizes, end); err == nil {
		t.Error("trailing byte: accepted")
	}
}

func TestMemoryMapIsCheckedAgainstItsFiles(t *testing.T) {
	extents, sizes, end := sampleMap()
	p, err := EncodeMemoryMap(extents, sizes, end)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseMemoryMap(p, sizes[:1], end); err == nil {
		t.Error("a layer too few: accepted")
	}
	if _, err := ParseMemoryMap(p, []uint64{2 * vm.PageSize, vm.PageSize}, end); err == nil {
		t.Error("a layer too short: accepted")
	}
	if _, err := ParseMemoryMap(p, sizes, 4*vm.PageSize); err == nil {
		t.Error("RAM too small: accepted")
	}
}

// A map that ParseMemoryMap would refuse is not written. If it were, the snapshot would be
// published, and every fork of it would fail.
func TestMemoryMapIsCheckedBeforeItIsWritten(t *testing.T) {
	const page = vm.PageSize
	sizes, end := []uint64{8 * page}, uint64(8*page)
	many := make([]vm.Extent, MaxExtents+1)
	for i := range many {
		many[i] = vm.Extent{GPA: 2 * uint64(i) * page, Length: page}
	}
	for name, c := range map[string]struct {
		extents []vm.Extent
		sizes   []uint64
		end     uint64
	}{
		"too many extents":      {many, sizes, 1 << 40},
		"outside of its layer":  {[]vm.Extent{{Length: 9 * page}}, sizes, end * 2},
		"outside of the memory": {[]vm.Extent{{GPA: 8 * page, Length: page}}, sizes, end},
		"a layer too few":       {[]vm.Extent{{Length: page, Layer: 1}}, sizes, end},
		"descending":            {[]vm.Extent{{GPA: page, Length: page}, {Length: page}}, sizes, end},
		"not a whole page":      {[]vm.Extent{{Length: 1}}, sizes, end},
	} {
		if _, err := EncodeMemoryMap(c.extents, c.sizes, c.end); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
	if _, err := EncodeMemoryMap([]vm.Extent{{Length: page}}, sizes, end); err != nil {
		t.Error(err)
	}
}

func FuzzParseMemoryMap(f *testing.F) {
	extents, sizes, end := sampleMap()
	p, err := EncodeMemoryMap(extents, sizes, end)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p)
	f.Fuzz(func(t *testing.T, p []byte) {
		got, err := ParseMemoryMap(p, sizes, end)
		if err == nil && memlayer.CheckExtents(got, sizes) != nil {
			t.Errorf("accepted an invalid map %v", got)
		}
	})
}
