package rng

import (
	"testing"

	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
)

// FuzzDevice serves rings with arbitrary content.
func FuzzDevice(f *testing.F) {
	f.Add(virtiotest.FuzzSeed(0, nil, 64), uint64(0))
	f.Add(virtiotest.FuzzSeed(0, []byte("x"), 1<<30), ^uint64(0))
	mem, err := guestmem.New(virtiotest.FuzzMemory)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content []byte, features uint64) {
		virtiotest.Fuzz(t, mem, New(), content, features)
	})
}
