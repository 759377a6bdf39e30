package snapshot

import (
	"slices"
	"testing"

	"github.com/forkd/forkd/internal/memlayer"
)

func sampleMap() ([]memlayer.Extent, []uint64, uint64) {
	return []memlayer.Extent{
		{GPA: 0, Length: 2 * memlayer.PageSize, Layer: 0, Offset: 0},
		{GPA: 4 * memlayer.PageSize, Length: memlayer.PageSize, Layer: 1, Offset: memlayer.PageSize},
	}, []uint64{2 * memlayer.PageSize, 2 * memlayer.PageSize}, 8 * memlayer.PageSize
}

func TestMemoryMapRoundTrip(t *testing.T) {
	extents, sizes, end := sampleMap()
	p, err := EncodeMemoryMap(extents)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseMemoryMap(p, sizes, end)
	if err != nil || !slices.Equal(got, extents) {
		t.Fatalf("got %v, %v", got, err)
	}
}

func TestMemoryMapDamageIsRefused(t *testing.T) {
	extents, sizes, end := sampleMap()
	p, err := EncodeMemoryMap(extents)
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
	p, err := EncodeMemoryMap(extents)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseMemoryMap(p, sizes[:1], end); err == nil {
		t.Error("a layer too few: accepted")
	}
	if _, err := ParseMemoryMap(p, []uint64{2 * memlayer.PageSize, memlayer.PageSize}, end); err == nil {
		t.Error("a layer too short: accepted")
	}
	if _, err := ParseMemoryMap(p, sizes, 4*memlayer.PageSize); err == nil {
		t.Error("RAM too small: accepted")
	}
	if _, err := EncodeMemoryMap(make([]memlayer.Extent, MaxExtents+1)); err == nil {
		t.Error("too many extents: encoded")
	}
}

func FuzzParseMemoryMap(f *testing.F) {
	extents, sizes, end := sampleMap()
	p, err := EncodeMemoryMap(extents)
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
