package disklayer

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// Written yields the clusters of all layers together, in runs that do not touch. The disk of this test ends
// with a part of a cluster. Written reads its bitmap in more than one step.
func TestWritten(t *testing.T) {
	const clusters = mergeBitmap*8*2 + 100
	rng := rand.New(rand.NewPCG(1, 2))
	want := make([]bool, clusters)
	var files []*os.File
	for i := range 3 {
		f, err := os.Create(filepath.Join(t.TempDir(), "layer"))
		if err == nil {
			err = Format(f, clusters*ClusterSize-512)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
		l, err := Open(f)
		if err != nil {
			t.Fatal(err)
		}
		set := func(first, n uint64) {
			if err := l.Set(first, n); err != nil {
				t.Fatal(err)
			}
			for c := first; c < first+n; c++ {
				want[c] = true
			}
		}
		for range 50 {
			first := rng.Uint64N(clusters)
			set(first, 1+rng.Uint64N(min(3000, clusters-first)))
		}
		set(uint64(mergeBitmap*8-i), 5) // a run that extends over two steps of Written
		set(clusters-1, 1)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	got, last := make([]bool, clusters), uint64(0)
	err := Written(t.Context(), files, func(first, n uint64) error {
		if n == 0 || first <= last && last > 0 {
			t.Errorf("a run of %d at %d, after one up to %d", n, first, last)
		}
		for c := first; c < first+n; c++ {
			got[c] = true
		}
		last = first + n
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for c := range want {
		if got[c] != want[c] {
			t.Fatalf("cluster %d: %v, want %v", c, got[c], want[c])
		}
	}
	boom := errors.New("boom")
	if err := Written(t.Context(), files, func(uint64, uint64) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Written(ctx, files, func(uint64, uint64) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := Written(t.Context(), nil, func(uint64, uint64) error { return boom }); err != nil {
		t.Errorf("no layers: %v", err)
	}
}
