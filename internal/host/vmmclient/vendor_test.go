package vmmclient_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/forkd/forkd/internal/host/sparse"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmtest"
)

// `scripts/test exchange` sets these flags, to bring a snapshot to a host of another vendor.
var (
	exchangeIn  = flag.String("exchange.in", "", "fork the snapshot in this `directory` in TestAnyVendor")
	exchangeOut = flag.String("exchange.out", "", "leave the last snapshot of TestAnyVendor in this new `directory`")
)

// carried describes a snapshot whose files are in one directory: its state, its memory, and the
// layers of its disk above the base image. The base image is not there, because every host has it.
type carried struct {
	Shape   vm.Shape
	Result  vmmproto.SaveResult
	Disk    vmmproto.Disk
	Layers  int    // number of disk layers above the base image
	Machine string // what the guest knows about its processor
}

// Files of a carried snapshot.
const (
	carriedRecord = "carried.json"
	carriedState  = "state"
	carriedMemory = "memory"
	carriedDisk   = "disk" // followed by the number of the layer
)

// processor prints what a guest knows about its processor and its clock. The guest's kernel has
// chosen its instructions by the vendor and the flags.
const processor = `grep -E '^(vendor_id|model name|flags)' /proc/cpuinfo; cat /sys/devices/system/clocksource/*/current_clocksource`

// TestAnyVendor forks a guest whose processor looks the same on hosts of Intel and AMD. The guest
// has a process that counts. The child must go on counting, run programs and keep time.
//
// With the flags above, the test also forks a snapshot from another host, and leaves a snapshot of
// that child.
func TestAnyVendor(t *testing.T) {
	a := vmtest.Load(t)
	shape := vm.Shape{MemoryBytes: 128 * mib, VCPUs: 1, Template: vm.TemplateAnyVendorEmulated}
	parent := boot(t, a, a.Minimal.VMLinux, a.Minimal.Initrd, "base", shape)
	parent.sh(t, "(i=0; while true; do i=$((i+1)); echo $i >/tmp/count; sleep 0.5; done) >/dev/null 2>&1 &")
	parent.sh(t, "dd if=/dev/urandom of=/root/noise bs=64K count=4 2>/dev/null; sha256sum /root/noise >/root/sum")
	machine := parent.sh(t, processor)
	s := save(t, parent, shape)
	checkChild(t, fork(t, a, s, "at-home"), machine)
	if *exchangeIn != "" {
		s, machine = carryIn(t, a, *exchangeIn)
		child := fork(t, a, s, "abroad")
		checkChild(t, child, machine)
		if err := child.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		s = branch(t, child, s, vm.BranchFull)
	}
	if *exchangeOut != "" {
		carryOut(t, s, machine, *exchangeOut)
	}
}

// checkChild checks that a child knows the given processor, goes on counting, and can read its
// disk.
func checkChild(t *testing.T, v *testVM, machine string) {
	t.Helper()
	if got := v.sh(t, processor); got != machine {
		t.Errorf("the child's processor:\n%s\nthe parent's:\n%s", got, machine)
	}
	v.sh(t, "cd / && sha256sum -c /root/sum")
	count := func() (n int) {
		if _, err := fmt.Sscan(v.sh(t, "cat /tmp/count"), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := count()
	t.Logf("the child has counted to %d", before)
	// The command sleep needs the timer, and awk uses the floating-point registers.
	if got := v.sh(t, `sleep 1; awk 'BEGIN { for (i = 0; i < 1000; i++) s += sqrt(i); printf "%.3f", s }'`); got != "21065.833" {
		t.Errorf("the sum is %s", got)
	}
	if after := count(); after <= before {
		t.Errorf("the process in the child does not count: %d, then %d", before, after)
	}
}

func carryOut(t *testing.T, s *saved, machine, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	files := map[string]*os.File{carriedState: s.state, carriedMemory: s.layer}
	for i, f := range s.disks[1:] {
		files[carriedDisk+strconv.Itoa(i)] = f
	}
	for name, f := range files {
		if err := sparse.Copy(filepath.Join(dir, name), f); err != nil {
			t.Fatal(err)
		}
	}
	p, err := json.Marshal(carried{s.shape, s.result, s.disk, len(s.disks) - 1, machine})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, carriedRecord), p, 0o644); err != nil {
		t.Fatal(err)
	}
}

func carryIn(t *testing.T, a *vmtest.Assets, dir string) (*saved, string) {
	t.Helper()
	p, err := os.ReadFile(filepath.Join(dir, carriedRecord))
	if err != nil {
		t.Fatal(err)
	}
	var c carried
	if err := json.Unmarshal(p, &c); err != nil {
		t.Fatal(err)
	}
	open := func(path string) *os.File {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	memory := open(filepath.Join(dir, carriedMemory))
	disks := []*os.File{open(filepath.Join(a.Images["base"], "rootfs.ext4"))}
	for i := range c.Layers {
		disks = append(disks, open(filepath.Join(dir, carriedDisk+strconv.Itoa(i))))
	}
	return &saved{shape: c.Shape, result: c.Result, disk: c.Disk, state: open(filepath.Join(dir, carriedState)),
		layer: memory, layers: []*os.File{memory}, disks: disks}, c.Machine
}
