package lab

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestStatusField(t *testing.T) {
	text := "MemTotal:  100 kB\nMemAvailable:   42 kB\n"
	if v, err := statusField(text, "MemAvailable"); err != nil || v != 42 {
		t.Errorf("%d, %v", v, err)
	}
	if _, err := statusField(text, "Mem"); err == nil {
		t.Error("found a field by half its name")
	}
}

func TestPrivateKiBLeavesTheGuestOut(t *testing.T) {
	smaps := `7f0000000000-7f0008000000 rw-p 00000000 00:18 12 /dev/shm/x/memory
Size:             131072 kB
Private_Clean:         4 kB
Private_Dirty:        40 kB
7f0008000000-7f0008021000 rw-p 00000000 00:00 0 
Private_Clean:         8 kB
Private_Dirty:       100 kB
Private_Hugetlb:       0 kB
00400000-00401000 r--p 00000000 00:18 13 /dev/shm/x/memory of another
Private_Clean:         1 kB
VmFlags: rd mr mw me
`
	if kib, err := privateKiB(strings.NewReader(smaps), "/dev/shm/x/memory"); err != nil || kib != 109 {
		t.Errorf("%v KiB, %v", kib, err)
	}
	if _, err := privateKiB(strings.NewReader("0-1 rw-p 0 0:0 0\nPrivate_Dirty: x kB\n"), "y"); err == nil {
		t.Error("accepted a number that is none")
	}
	if kib, err := PrivateKiB(os.Getpid(), "/none"); err != nil || kib < 100 {
		t.Errorf("this process has %v KiB of its own, %v", kib, err)
	}
}

// The measured CPU time includes the CPU time of a child that is still running.
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
	if own, child := after.Since(before, []int{pid}); own <= 0 || child <= 0 || child != after.children[pid] {
		t.Errorf("this process %v, the child %v; it used %v", own, child, after.children[pid])
	}
}

func TestNumbers(t *testing.T) {
	n := &Numbers{List: []int{7}, Min: 0, Max: 100}
	for text, want := range map[string][]int{"": nil, "0,10,100": {0, 10, 100}} {
		if err := n.Set(text); err != nil || !slices.Equal(n.List, want) || n.String() != text {
			t.Errorf("%q: %v (%q), %v", text, n.List, n, err)
		}
	}
	for _, text := range []string{"101", "-1", "1,,2", "1,", "x", "1 ,2"} {
		if n.Set(text) == nil {
			t.Errorf("accepted %q as %v", text, n.List)
		}
	}
}
