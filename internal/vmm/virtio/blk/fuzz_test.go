package blk

import (
	"bytes"
	"os"
	"testing"

	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
)

// FuzzDevice serves rings and requests with arbitrary content. The base image must stay unchanged.
func FuzzDevice(f *testing.F) {
	for kind := range byte(14) {
		header := make([]byte, headerSize+2*segmentSize)
		header[0], header[8], header[headerSize], header[headerSize+8] = kind, 3, 2, 9
		f.Add(virtiotest.FuzzSeed(0, header, 513), uint64(0))
	}
	base := bytes.Repeat([]byte("base"), 4096)
	disk := newDisk(f, 16*cluster, base)
	name := disk.base.Name()
	mem, err := guestmem.New(virtiotest.FuzzMemory)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content []byte, features uint64) {
		virtiotest.Fuzz(t, mem, NewSlot("empty", func() {}), content, features)
		virtiotest.Fuzz(t, mem, New(disk, "fuzz", func() {}), content, features)
		if now, err := os.ReadFile(name); err != nil || !bytes.Equal(now, base) {
			t.Fatalf("the base image has changed (%v)", err)
		}
	})
}
