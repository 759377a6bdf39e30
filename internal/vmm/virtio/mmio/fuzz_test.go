package mmio_test

import (
	"testing"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
)

// FuzzRegisters acts as a hostile driver that stores arbitrary values to registers, even while the
// device runs.
func FuzzRegisters(f *testing.F) {
	f.Add([]byte{0x70 / 4, 1, 0x70 / 4, 3, 0x24 / 4, 1, 0x20 / 4, 1, 0x70 / 4, 11, 0x38 / 4, 8, 0x44 / 4, 1, 0x70 / 4, 15},
		false)
	f.Add([]byte{0x50 / 4, 0, 0x70 / 4, 0, 0x50 / 4, 9}, true)
	tr, mem, _, _ := newTransport(f)
	f.Fuzz(func(t *testing.T, ops []byte, started bool) {
		store(tr, 0x70, 0)
		if started {
			virtiotest.Start(t, mem, tr, virtio.FVersion1, ringBase, 16, 8)
		}
		for ; len(ops) >= 2; ops = ops[2:] {
			off := uint64(ops[0]) * 4
			store(tr, off, uint32(int8(ops[1])))
			load(tr, off)
		}
	})
}

// FuzzRestore restores arbitrary state.
func FuzzRestore(f *testing.F) {
	tr, mem, _, _ := newTransport(f)
	virtiotest.Start(f, mem, tr, virtio.FVersion1, ringBase, 16, 8)
	tr.Quiesce()
	var w codec.Writer
	tr.Save(&w)
	if err := tr.Unquiesce(); err != nil {
		f.Fatal(err)
	}
	f.Add(w.Bytes())
	f.Fuzz(func(t *testing.T, state []byte) {
		tr.Quiesce()
		restored := tr.Restore(codec.NewReader(state))
		if err := tr.Unquiesce(); err != nil {
			t.Fatal(err)
		}
		if restored != nil && load(tr, 0x70) != 0 {
			t.Fatal("a failed restore left something")
		}
	})
}
