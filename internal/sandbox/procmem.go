package sandbox

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// ProcessMemory is the memory of a VMM process, in KiB, from /proc/<pid>/smaps (proc_pid_smaps(5)).
type ProcessMemory struct {
	PSS          uint64 // shared pages divided by the number of their users
	Private      uint64 // pages that only this process has
	GuestPSS     uint64 // of PSS: guest RAM
	GuestPrivate uint64 // of Private: guest RAM
}

// minGuestMapping is the smallest mapping that is taken for guest RAM, in bytes: more than any stack, arena chunk or
// library of a VMM, less than the smallest guest. Parts of one VM's RAM are separate mappings, see guestMapping.
const minGuestMapping = 32 << 20

func readProcessMemory(pid int) (ProcessMemory, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return ProcessMemory{}, fmt.Errorf("measure process %d: %w", pid, err)
	}
	defer f.Close()
	m, err := parseSmaps(f)
	if err != nil {
		return m, fmt.Errorf("measure process %d: %w", pid, err)
	}
	return m, nil
}

// parseSmaps adds up the mappings of a VMM.
func parseSmaps(r io.Reader) (ProcessMemory, error) {
	var m ProcessMemory
	guest := false
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		if !strings.HasSuffix(fields[0], ":") {
			guest = guestMapping(fields)
			continue
		}
		kib, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil {
			continue // "VmFlags: rd wr", "THPeligible: 0" and the like
		}
		switch fields[0] {
		case "Pss:":
			m.PSS += kib
			if guest {
				m.GuestPSS += kib
			}
		case "Private_Clean:", "Private_Dirty:":
			m.Private += kib
			if guest {
				m.GuestPrivate += kib
			}
		}
	}
	return m, lines.Err()
}

// guestMapping tells guest RAM from the rest of a VMM by the first line of a mapping: pages over a snapshot's memory
// layer, or a large anonymous range that is not the Go heap, which lies at 0xc000000000.
func guestMapping(fields []string) bool {
	if len(fields) >= 6 && strings.Contains(fields[5], "memory.layer") {
		return true
	}
	from, to, ok := strings.Cut(fields[0], "-")
	if !ok || len(fields) >= 6 || strings.HasPrefix(from, "c0") {
		return false
	}
	start, err1 := strconv.ParseUint(from, 16, 64)
	end, err2 := strconv.ParseUint(to, 16, 64)
	return err1 == nil && err2 == nil && end-start >= minGuestMapping
}
