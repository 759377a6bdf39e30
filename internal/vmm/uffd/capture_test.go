package uffd

import "testing"

func TestBitmap(t *testing.T) {
	const pages = 300
	for _, c := range []struct{ first, n uint64 }{
		{0, 0}, {0, 1}, {63, 1}, {63, 2}, {64, 64}, {0, 128}, {5, 59}, {5, 60}, {70, 200}, {299, 1}, {0, pages},
	} {
		b := newBitmap(pages)
		b.setRange(c.first, c.n)
		for i := range uint64(pages) {
			if want := i >= c.first && i < c.first+c.n; b.get(i) != want {
				t.Errorf("setRange(%d, %d): bit %d is %v", c.first, c.n, i, b.get(i))
			}
		}
	}
	b := newBitmap(pages)
	b.set(100)
	b.setRange(90, 5)
	if !b.get(100) || b.set(94) || !b.set(95) {
		t.Error("setRange and set disturb each other, or set does not tell a new bit from an old one")
	}
}
