package vsock

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
)

// FuzzDevice serves rings and packets with arbitrary content. The host accepts the guest's streams
// and sends data on them.
func FuzzDevice(f *testing.F) {
	for op := range uint16(9) {
		h := header{srcCID: guestCID, dstCID: hostCID, srcPort: 1, dstPort: 2, kind: typeStream, op: op, bufAlloc: 99}
		b := h.encode()
		f.Add(virtiotest.FuzzSeed(queueTX, b[:], 0), uint64(0))
	}
	f.Add(virtiotest.FuzzSeed(queueEvnt, nil, 4), uint64(1)<<29)
	mem, err := guestmem.New(virtiotest.FuzzMemory)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content []byte, features uint64) {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(ends[1])
		var peers []int
		dev, err := New(Config{GuestCID: guestCID, Listener: os.NewFile(uintptr(ends[0]), "listener"),
			Dial: func(uint32) (int, error) {
				ours, theirs := streamPair(t)
				peers = append(peers, ours)
				_, err := unix.Write(ours, []byte("welcome"))
				return theirs, err
			}})
		if err != nil {
			t.Fatal(err)
		}
		virtiotest.Fuzz(t, mem, dev, content, features)
		if err := dev.Close(); err != nil {
			t.Fatal(err)
		}
		for _, fd := range peers {
			if err := unix.Close(fd); err != nil {
				t.Fatal(err)
			}
		}
	})
}
