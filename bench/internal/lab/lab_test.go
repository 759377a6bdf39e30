package lab

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A VMM with 64 MiB of guest RAM: a layer page between anonymous ranges, beside the binary with its .bss, the heap,
// a reservation and a thread's stack.
const vmmSmaps = `00400000-00500000 r-xp 00000000 08:01 11 /run/forkd-vmm
Pss:                  10 kB
Private_Clean:         4 kB
00500000-00510000 rw-p 00000000 00:00 0
Pss:                   6 kB
Private_Dirty:         6 kB
3a9ad8000000-3a9ad8400000 rw-p 00000000 00:00 0
Pss:                 100 kB
Private_Dirty:       100 kB
7e8000000000-7ea000000000 ---p 00000000 00:00 0
Pss:                   0 kB
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
Pss:                   8 kB
Private_Dirty:         8 kB
7f1000000000-7f1000001000 rw-p 00000000 00:1a 12 /dev/shm/x/memory.layer
Pss:                   2 kB
Private_Dirty:         0 kB
7f1000001000-7f1004000000 rw-p 00000000 00:00 0
Pss:                  16 kB
Private_Clean:         4 kB
Private_Dirty:        12 kB
VmFlags: rd wr mr
7f1004001000-7f1004002000 rw-s 00000000 00:0e 13 anon_inode:kvm-vcpu:0
Pss:                   4 kB
Private_Dirty:         4 kB
`

func TestSmapsParts(t *testing.T) {
	m, err := parseSmaps(strings.NewReader(vmmSmaps), 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	wantPSS := [Parts]uint64{PartGuest: 18, PartBinary: 16, PartHeap: 100, PartRest: 12}
	wantPrivate := [Parts]uint64{PartGuest: 16, PartBinary: 10, PartHeap: 100, PartRest: 12}
	if m.PSS != wantPSS || m.Private != wantPrivate {
		t.Errorf("got %+v, want PSS %v, private %v", m, wantPSS, wantPrivate)
	}
	if _, err := parseSmaps(strings.NewReader(vmmSmaps), 65<<20); err == nil {
		t.Error("found guest RAM of a guest that is larger than all of it")
	}
}

func TestStatusField(t *testing.T) {
	text := "MemTotal:  100 kB\nMemAvailable:   42 kB\n"
	if v, err := statusField(text, "MemAvailable"); err != nil || v != 42 {
		t.Errorf("%d, %v", v, err)
	}
	if _, err := statusField(text, "Mem"); err == nil {
		t.Error("found a field by half its name")
	}
}

// A child's CPU time counts while it lives.
func TestCPUSeesChildren(t *testing.T) {
	before, err := ReadCPU()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("/bin/sh", "-c", "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; echo; read x")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer in.Close()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	after, err := ReadCPU()
	if err != nil {
		t.Fatal(err)
	}
	pid := child.Process.Pid
	with, without := after.Since(before, []int{pid}), after.Since(before, nil)
	if with <= without || with-without != after.children[pid] {
		t.Errorf("%v with the child, %v without; it used %v", with, without, after.children[pid])
	}
	if parent("12 (a) b) S 34 1 1") != 34 || parent("nonsense") != 0 {
		t.Error("the parent is not the field after the state")
	}
	if p, err := os.ReadFile("/proc/self/stat"); err != nil || parent(string(p)) != os.Getppid() {
		t.Errorf("parent of this process: %v", err)
	}
}
