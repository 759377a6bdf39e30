package lab

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// Part is a kind of memory of a VMM process.
type Part int

// The parts.
const (
	PartGuest  Part = iota // guest RAM
	PartBinary             // code and data of forkd-vmm
	PartHeap               // the Go heap
	PartRest               // stacks, the Go runtime's own tables, KVM's run areas, the console ring
	Parts                  // how many there are
)

// String names the part.
func (p Part) String() string {
	return [...]string{"guest RAM", "binary", "Go heap", "stacks, runtime, KVM areas"}[p]
}

// Memory is what a VMM process occupies, in KiB.
type Memory struct {
	PSS        [Parts]uint64 // shared pages divided by the number of their users
	Private    [Parts]uint64 // pages that only this process has
	PageTables uint64        // in the kernel, not part of the above
}

// MemoryOf reads the memory of the VMM process pid whose guest has guestBytes of RAM.
func MemoryOf(pid int, guestBytes uint64) (Memory, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return Memory{}, fmt.Errorf("measure process %d: %w", pid, err)
	}
	defer f.Close()
	m, err := parseSmaps(f, guestBytes)
	if err != nil {
		return m, fmt.Errorf("measure process %d: %w", pid, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return m, fmt.Errorf("measure process %d: %w", pid, err)
	}
	m.PageTables, err = statusField(string(status), "VmPTE")
	return m, err
}

// mmapFloor is below everything that Linux places by itself on x86-64 (mm/util.c, mmap_base: at most 1 TiB of
// randomisation and the stack's limit below 128 TiB). The Go runtime asks for addresses far below it for its heap and for
// nothing else.
const mmapFloor = 0x7e0000000000

// mapping is one entry of smaps.
type mapping struct {
	start, end   uint64
	mode, name   string
	pss, private uint64
}

// parseSmaps sorts the mappings of a VMM. Guest RAM is one range of addresses, cut into mappings of layer files and of
// anonymous memory: it is the longest chain of such mappings without a gap, if that can hold the guest's RAM.
func parseSmaps(r io.Reader, guestBytes uint64) (Memory, error) {
	maps, err := readSmaps(r)
	if err != nil {
		return Memory{}, err
	}
	first, last := guestRange(maps)
	if last == first || maps[last-1].end-maps[first].start < guestBytes {
		return Memory{}, fmt.Errorf("no range of %d bytes that could be guest RAM", guestBytes)
	}
	var m Memory
	for i, v := range maps {
		part := PartRest
		switch {
		case i >= first && i < last:
			part = PartGuest
		case v.binary(), v.name == "" && i > 0 && maps[i-1].binary() && maps[i-1].end == v.start: // the second is .bss
			part = PartBinary
		case v.name == "" && v.start < mmapFloor:
			part = PartHeap
		}
		m.PSS[part] += v.pss
		m.Private[part] += v.private
	}
	return m, nil
}

func (v *mapping) binary() bool { return strings.Contains(v.name, "forkd-vmm") }

// guestRange returns the indices of the longest chain of mappings that may be guest RAM, in bytes.
func guestRange(maps []mapping) (first, last int) {
	var longest uint64
	for i := 0; i < len(maps); {
		j := i
		for j < len(maps) && maps[j].mayBeGuest() && (j == i || maps[j].start == maps[j-1].end) {
			j++
		}
		if j > i && maps[j-1].end-maps[i].start > longest {
			longest, first, last = maps[j-1].end-maps[i].start, i, j
		}
		i = max(j, i+1)
	}
	return first, last
}

// mayBeGuest tells writable private memory from what the Go runtime has only reserved, which is longer.
func (v *mapping) mayBeGuest() bool {
	return v.mode == "rw-p" && (v.name == "" && v.start >= mmapFloor || strings.Contains(v.name, "layer"))
}

func readSmaps(r io.Reader) ([]mapping, error) {
	var maps []mapping
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		if !strings.HasSuffix(fields[0], ":") {
			v, err := parseHead(fields)
			if err != nil {
				return nil, err
			}
			maps = append(maps, v)
			continue
		}
		kib, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil || len(maps) == 0 {
			continue // "VmFlags: rd wr" and the like
		}
		v := &maps[len(maps)-1]
		switch fields[0] {
		case "Pss:":
			v.pss = kib
		case "Private_Clean:", "Private_Dirty:":
			v.private += kib
		}
	}
	return maps, lines.Err()
}

// parseHead reads "start-end perms offset dev inode [name]".
func parseHead(fields []string) (v mapping, err error) {
	if _, err = fmt.Sscanf(fields[0], "%x-%x", &v.start, &v.end); err != nil {
		return v, fmt.Errorf("smaps line %q: %w", strings.Join(fields, " "), err)
	}
	v.mode = fields[1]
	if len(fields) > 5 {
		v.name = fields[5]
	}
	return v, nil
}
