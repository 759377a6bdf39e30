package procmem

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// vmmSmaps is the smaps of a VMM whose guest has 64 MiB of RAM. The RAM consists of a page of a
// layer and, after it, an anonymous range. The other mappings are the binary with its .bss, the
// heap, a reserved range, and a thread's stack.
const vmmSmaps = `00400000-00500000 r-xp 00000000 08:01 11 /layers/forkd-vmm
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
7f1000000000-7f1000001000 rw-p 00000000 00:1a 12 /dev/shm/forkd-vmm x/memory.layer (deleted)
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

// upperRegion is guest RAM above the device hole, at a distance from the other mappings.
const upperRegion = `7f2000000000-7f2002000000 rw-p 00000000 00:00 0
Pss:                  20 kB
Private_Dirty:        20 kB
`

func TestParts(t *testing.T) {
	for _, c := range []struct {
		name, smaps  string
		guestBytes   uint64
		guest, other uint64 // private memory in KiB, of PartGuest and of PartRest
	}{
		{"one region", vmmSmaps, 64 << 20, 16, 12},
		{"two regions", vmmSmaps + upperRegion, 96 << 20, 36, 12},
		{"one region beside another long range", vmmSmaps + upperRegion, 64 << 20, 16, 32},
	} {
		m, err := parse(strings.NewReader(c.smaps), c.guestBytes)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		want := [Parts]uint64{PartGuest: c.guest, PartBinary: 10, PartHeap: 100, PartRest: c.other}
		if m.Private != want || m.TotalPrivate() != sum(want) {
			t.Errorf("%s: private %v, want %v", c.name, m.Private, want)
		}
	}
	m, err := parse(strings.NewReader(vmmSmaps), 64<<20)
	want := [Parts]uint64{PartGuest: 18, PartBinary: 16, PartHeap: 100, PartRest: 12}
	if err != nil || m.PSS != want || m.TotalPSS() != 146 {
		t.Errorf("PSS %v, want %v (%v)", m.PSS, want, err)
	}
	if _, err := parse(strings.NewReader(vmmSmaps+upperRegion), 97<<20); err == nil {
		t.Error("found guest RAM of a guest that is larger than all of it")
	}
}

// The test makes mappings like those of guest RAM in its own process. The function Of finds these
// mappings in the process's real smaps, and counts the written pages.
func TestOfThisProcess(t *testing.T) {
	const size, written = 256 << 20, 4 << 20
	const guard = 2 << 20 // keeps mappings of the Go runtime away from both ends
	room, err := unix.Mmap(-1, 0, size+2*guard, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(room)
	ram := room[guard : guard+size]
	if err := unix.Mprotect(ram, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		t.Fatal(err)
	}
	if err := unix.Madvise(ram, unix.MADV_NOHUGEPAGE); err != nil && err != unix.EINVAL {
		t.Fatal(err)
	}
	before, err := Of(os.Getpid(), size)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < written; i += 4096 {
		ram[i] = 1
	}
	after, err := Of(os.Getpid(), size)
	if err != nil {
		t.Fatal(err)
	}
	if grown := after.Private[PartGuest] - before.Private[PartGuest]; grown != written>>10 {
		t.Errorf("guest RAM grew by %d KiB, %d were written", grown, written>>10)
	}
	if after.PageTables == 0 || after.Private[PartHeap] == 0 {
		t.Errorf("page tables %d KiB, heap %d KiB", after.PageTables, after.Private[PartHeap])
	}
}

// A compromised VMM may have as many mappings as the kernel permits. The function Of returns an
// error long before it has read all mappings.
func TestMappingsAreBounded(t *testing.T) {
	var heads strings.Builder
	for i := range 4 * maxMappings {
		fmt.Fprintf(&heads, "%x-%x rw-p 00000000 00:00 0\nPss: 0 kB\n", 0x7f0000000000+2*i<<12, 0x7f0000000000+(2*i+1)<<12)
	}
	read := strings.NewReader(heads.String())
	if _, err := parse(read, 1<<20); err == nil || !strings.Contains(err.Error(), "mappings") {
		t.Errorf("got %v", err)
	}
	if read.Len() < heads.Len()/2 {
		t.Errorf("%d of %d bytes were read", heads.Len()-read.Len(), heads.Len())
	}
}
