package net

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
)

// FuzzDevice serves rings and frames with arbitrary content. The peer has sent a frame of each
// kind, and then a message that the fuzzer has chosen.
func FuzzDevice(f *testing.F) {
	plain, long := message(header{}, 60), message(segmented, 3000)
	f.Add(virtiotest.FuzzSeed(queueTX, plain, 0), uint64(allFeatures), []byte(nil))
	f.Add(virtiotest.FuzzSeed(queueTX, long, 0), uint64(allFeatures), plain)
	f.Add(virtiotest.FuzzSeed(queueTX, long, 0), uint64(0), long)
	seed := virtiotest.FuzzSeed(queueTX, plain, 0)
	copy(seed[:512], virtiotest.FuzzSeed(queueRX, nil, 2048))
	f.Add(seed, uint64(allFeatures), []byte("x"))
	copy(seed[:512], virtiotest.FuzzSeed(queueRX, nil, 1<<30))
	f.Add(seed, uint64(allFeatures), []byte(nil))
	mem, err := guestmem.New(virtiotest.FuzzMemory)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content []byte, features uint64, sent []byte) {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(ends[1])
		for _, m := range [][]byte{plain, long, sent[:min(len(sent), frame.MaxMessage)]} {
			if _, err := unix.Write(ends[1], m); err != nil {
				t.Fatal(err)
			}
		}
		dev := newDevice(t)
		dev.SetPeer(NewPeer(ends[0]))
		virtiotest.Fuzz(t, mem, dev, content, features)
		if err := dev.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
