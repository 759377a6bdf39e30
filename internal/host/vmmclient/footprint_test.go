package vmmclient_test

import (
	"fmt"
	"testing"

	"github.com/forkd/forkd/internal/host/procmem"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmtest"
)

// What an idle child costs that has taken up its identity: hundreds of them share a host.
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
	var dirty, vmm uint64
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
		dirty += stats.GuestDirtyBytes
		vmm += (memory.TotalPrivate() - memory.Private[procmem.PartGuest]) << 10
	}
	dirty, vmm = dirty/children, vmm/children
	t.Logf("mean of %d children: %d KiB of guest memory written, %d KiB private to the VMM", children, dirty>>10, vmm>>10)
	if dirty > maxDirty {
		t.Errorf("a child writes %d bytes of its memory until it has confirmed, at most %d", dirty, maxDirty)
	}
	if vmm > maxVMM {
		t.Errorf("its VMM has %d private bytes besides guest memory, at most %d", vmm, maxVMM)
	}
}
