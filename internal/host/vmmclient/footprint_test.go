package vmmclient_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/forkd/forkd/internal/host/procmem"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmtest"
)

// TestIdleChildIsSmall measures the memory of an idle child that has a new identity. This memory
// must be small, because a host may have hundreds of children. The test takes the minimum over
// several children: on a busy host, a child takes longer to confirm its identity, and in that time
// the timers of its kernel write to more pages.
func TestIdleChildIsSmall(t *testing.T) {
	const maxDirty, maxVMM = 1 * mib, 1 * mib
	a := vmtest.Load(t)
	shape := vm.Shape{MemoryBytes: 256 * mib, VCPUs: 1, Template: vmtest.Template()}
	parent := boot(t, a, a.Cloud.VMLinux, a.Cloud.Initrd, "base", shape)
	parent.sh(t, "true")
	if err := parent.agent.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := save(t, parent, shape)
	const children = 4
	var dirty []uint64
	var vmm uint64
	for i := range children {
		child := fork(t, a, s, fmt.Sprintf("child-%d", i))
		stats, err := child.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		memory, err := procmem.Of(child.PID(), shape.MemoryBytes)
		if err != nil {
			t.Fatal(err)
		}
		dirty = append(dirty, stats.GuestDirtyBytes)
		vmm += (memory.TotalPrivate() - memory.Private[procmem.PartGuest]) << 10
	}
	vmm /= children
	t.Logf("%d children: %d bytes of guest memory written, mean of %d KiB private to the VMM", children, dirty, vmm>>10)
	if least := slices.Min(dirty); least > maxDirty {
		t.Errorf("a child writes %d bytes of its memory until it has confirmed, at most %d", least, maxDirty)
	}
	if vmm > maxVMM {
		t.Errorf("its VMM has %d private bytes besides guest memory, at most %d", vmm, maxVMM)
	}
}
