package vmmclient_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/jail/posture"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmtest"
)

// A VMM that runs a guest is in its jail, and has only the descriptors that the daemon has sent.
// The test checks this after a boot, a save and a fork.
func TestPostureOfAVMM(t *testing.T) {
	a := vmtest.Load(t)
	shape := vm.Shape{MemoryBytes: 256 * mib, VCPUs: 1, Template: vmtest.Template()}
	parent := boot(t, a, a.Minimal.VMLinux, a.Minimal.Initrd, "base", shape)
	child := fork(t, a, save(t, parent, shape), "child")
	for name, v := range map[string]*testVM{"parent": parent, "child": child} {
		for _, loose := range posture.Check(v.PID(), posture.Want{Files: 4096, Bytes: longest(v), Filters: 2,
			Descriptors: []string{
				"(/dev)?/null", "/memfd:forkd-vmm .*", `socket:\[\d+\]`, `.*/\d+/pagemap`, "(/dev)?/kvm",
				`anon_inode:\[?(eventpoll|eventfd|kvm-vm|kvm-vcpu:\d+)\]?`, ".*/rootfs.ext4", ".*/(top|disk)[^/]*",
			}}) {
			t.Errorf("%s: %s", name, loose)
		}
		checkOnTime(t, name, v.PID())
	}
}

// checkOnTime fails the test if the kernel may delay timers of a VMM by more than the default
// slack. KVM's own thread is exempt.
func checkOnTime(t *testing.T, name string, pid int) {
	t.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		its := filepath.Join("/proc", thread.Name())
		if called, err := os.ReadFile(filepath.Join(its, "comm")); err != nil || strings.HasPrefix(string(called), "kvm-") {
			continue // the thread has ended, or belongs to KVM
		}
		slack, err := os.ReadFile(filepath.Join(its, "timerslack_ns"))
		if text := string(slack); err == nil && text != "50000\n" {
			t.Errorf("%s: timers of thread %s may be %s ns late", name, thread.Name(), text)
		}
	}
}

// longest returns the size of the longest file that the VMM v must write, in bytes.
func longest(v *testVM) uint64 {
	_, _, size := disklayer.Layout(v.disk.SizeBytes)
	return max(size, 256*mib)
}
