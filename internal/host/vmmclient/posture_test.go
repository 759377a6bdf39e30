package vmmclient_test

import (
	"testing"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/jail/posture"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmtest"
)

// A VMM that runs a guest is locked up, and holds what it was given and no more: after a boot, a
// save and a fork.
func TestPostureOfAVMM(t *testing.T) {
	a := vmtest.Load(t)
	shape := vm.Shape{MemoryBytes: 256 * mib, VCPUs: 1, Template: vmtest.Template()}
	parent := boot(t, a, a.Minimal.VMLinux, a.Minimal.Initrd, "base", shape)
	child := fork(t, a, save(t, parent, shape), "child")
	for name, v := range map[string]*testVM{"parent": parent, "child": child} {
		for _, loose := range posture.Check(v.PID(), posture.Want{Files: 4096, Bytes: longest(v), Descriptors: []string{
			"(/dev)?/null", "/memfd:forkd-vmm .*", `socket:\[\d+\]`, `.*/\d+/pagemap`, "(/dev)?/kvm",
			`anon_inode:\[?(eventpoll|eventfd|kvm-vm|kvm-vcpu:\d+)\]?`, ".*/rootfs.ext4", ".*/(top|disk)[^/]*",
		}}) {
			t.Errorf("%s: %s", name, loose)
		}
	}
}

// longest is the size of the longest file that v has to write, in bytes.
func longest(v *testVM) uint64 {
	_, _, size := disklayer.Layout(v.disk.SizeBytes)
	return max(size, 256*mib)
}
