// Package procmem measures the memory of a VMM process, from /proc/<pid>/smaps (proc_pid_smaps(5)).
// It distinguishes guest RAM from the memory of the program itself.
//
// It works only for forkd-vmm: it recognizes forkd-vmm's kinds of memory by their mappings. It does
// not talk to the process. Of the kernel memory that a VM needs, it counts only page tables.
package procmem

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Part is a kind of memory of a VMM process.
type Part int

// Values of Part.
const (
	PartGuest  Part = iota // guest RAM
	PartBinary             // code and data of forkd-vmm
	PartHeap               // the Go heap
	PartRest               // stacks, tables of the Go runtime, KVM's run areas, the console ring
	Parts                  // the number of parts
)

// String names the part.
func (p Part) String() string {
	return [...]string{"guest RAM", "binary", "Go heap", "stacks, runtime, KVM areas"}[p]
}

// Memory is the memory of a VMM process, in KiB.
type Memory struct {
	PSS        [Parts]uint64 // each shared page counts as its size divided by the number of processes that map it
	Private    [Parts]uint64 // pages that only this process maps
	PageTables uint64        // page tables, which are kernel memory and not in the other fields
}

// TotalPSS returns the PSS of all parts, in KiB.
func (m *Memory) TotalPSS() uint64 { return sum(m.PSS) }

// TotalPrivate returns the private memory of all parts, in KiB.
func (m *Memory) TotalPrivate() uint64 { return sum(m.Private) }

func sum(parts [Parts]uint64) (total uint64) {
	for _, v := range parts {
		total += v
	}
	return total
}

// Of measures the memory of the VMM process with the given pid. The process's guest has guestBytes
// of RAM. The kernel has to walk the process's page tables, which takes milliseconds for a large
// guest.
func Of(pid int, guestBytes uint64) (Memory, error) {
	m, err := read(pid, guestBytes)
	if err != nil {
		return m, fmt.Errorf("measure process %d: %w", pid, err)
	}
	return m, nil
}

func read(pid int, guestBytes uint64) (Memory, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return Memory{}, err
	}
	defer f.Close()
	m, err := parse(f, guestBytes)
	if err != nil {
		return m, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return m, err
	}
	m.PageTables, err = pageTables(string(status))
	return m, err
}

// pageTables returns the number in the line "VmPTE: 123 kB" of proc_pid_status(5), in KiB.
func pageTables(status string) (uint64, error) {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, "VmPTE:"); ok {
			number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			return strconv.ParseUint(number, 10, 64)
		}
	}
	return 0, errors.New("no field VmPTE in its status")
}

// parse reads the file smaps of a VMM. It adds the size of each mapping to the part of Memory that
// the mapping belongs to.
func parse(r io.Reader, guestBytes uint64) (Memory, error) {
	maps, err := readMappings(r)
	if err != nil {
		return Memory{}, err
	}
	guest := guestRAM(maps, guestBytes)
	if guest == nil {
		return Memory{}, fmt.Errorf("no range of %d bytes that could be guest RAM", guestBytes)
	}
	var m Memory
	for i, v := range maps {
		part := PartRest
		switch {
		case slices.ContainsFunc(guest, func(c chain) bool { return i >= c.first && i < c.end }):
			part = PartGuest
		// .bss is an anonymous mapping right after a mapping of the binary
		case v.binary(), v.name == "" && i > 0 && maps[i-1].binary() && maps[i-1].end == v.start:
			part = PartBinary
		case v.name == "" && v.start < mmapFloor:
			part = PartHeap
		}
		m.PSS[part] += v.pss
		m.Private[part] += v.private
	}
	return m, nil
}

// chain is a range of addresses without gaps. It consists of the mappings with indexes from first
// to end-1.
type chain struct {
	first, end int
	bytes      uint64
}

// guestRegions is the maximum number of ranges of guest RAM: one below the 32-bit device hole and
// one above it.
const guestRegions = 2

// guestRAM returns the ranges of guest RAM, or nil if it finds none. Each region of guest RAM is
// one range of addresses without gaps, made of mappings of layer files and of anonymous memory. The
// regions are the longest such ranges of a VMM.
func guestRAM(maps []mapping, guestBytes uint64) []chain {
	var chains []chain
	for i := 0; i < len(maps); {
		j := i
		for j < len(maps) && maps[j].mayBeGuest() && (j == i || maps[j].start == maps[j-1].end) {
			j++
		}
		if j > i {
			chains = append(chains, chain{i, j, maps[j-1].end - maps[i].start})
		}
		i = max(j, i+1)
	}
	slices.SortStableFunc(chains, func(a, b chain) int {
		if a.bytes > b.bytes {
			return -1
		}
		return 1
	})
	var total uint64
	for n, c := range chains[:min(len(chains), guestRegions)] {
		if total += c.bytes; total >= guestBytes {
			return chains[:n+1]
		}
	}
	return nil
}
