package procmem

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
)

// mmapFloor is lower than all addresses that Linux itself chooses for mappings on x86-64
// (mm/util.c, mmap_base: 128 TiB, less the stack's limit and at most 1 TiB of randomization). Only
// the Go runtime requests lower addresses, for its heap.
const mmapFloor = 0x7e0000000000

// mapping is one mapping in smaps.
type mapping struct {
	start, end   uint64
	mode         string
	name         string // file name without directory; empty for anonymous memory
	pss, private uint64 // KiB
}

func (v *mapping) binary() bool { return strings.Contains(v.name, "forkd-vmm") }

// mayBeGuest reports whether the mapping may be guest RAM, that is, whether it is writable private
// memory and not the Go heap. The Go runtime also reserves long ranges, but these are not writable.
func (v *mapping) mayBeGuest() bool {
	return v.mode == "rw-p" && (v.name == "" && v.start >= mmapFloor || strings.Contains(v.name, "layer"))
}

// maxMappings is larger than the number of mappings of any VMM. A VMM has two mappings for each
// range of a rebase (at most 4096 ranges, see package machine), and the mappings of its snapshot's
// extents. The kernel permits four times as many. Describing a mapping takes some microseconds, so
// without this bound a compromised VMM could make each measurement take seconds.
const maxMappings = 16384

func readMappings(r io.Reader) ([]mapping, error) {
	var maps []mapping
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Bytes()
		key, rest, _ := bytes.Cut(line, []byte(" "))
		if !bytes.HasSuffix(key, []byte(":")) {
			if len(maps) == maxMappings {
				return nil, fmt.Errorf("it has more than %d mappings, which no VMM has by itself", maxMappings)
			}
			v, err := parseHead(string(line))
			if err != nil {
				return nil, err
			}
			maps = append(maps, v)
			continue
		}
		var field *uint64
		switch name := string(key); {
		case len(maps) == 0:
		case name == "Pss:":
			field = &maps[len(maps)-1].pss
		case name == "Private_Clean:" || name == "Private_Dirty:":
			field = &maps[len(maps)-1].private
		}
		if field == nil {
			continue // a line such as "VmFlags: rd wr" has no number
		}
		number, _, _ := bytes.Cut(bytes.TrimLeft(rest, " "), []byte(" "))
		kib, err := strconv.ParseUint(string(number), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("smaps line %q: %w", line, err)
		}
		*field += kib
	}
	return maps, lines.Err()
}

// parseHead parses a line of the form "start-end perms offset dev inode [path]".
func parseHead(line string) (v mapping, err error) {
	fields := strings.Fields(line)
	if len(fields) < 5 {
		return v, fmt.Errorf("smaps line %q: want addresses, permissions, offset, device and inode", line)
	}
	start, end, _ := strings.Cut(fields[0], "-")
	if v.start, err = strconv.ParseUint(start, 16, 64); err == nil {
		v.end, err = strconv.ParseUint(end, 16, 64)
	}
	if err != nil {
		return v, fmt.Errorf("smaps line %q: %w", line, err)
	}
	v.mode = fields[1]
	if len(fields) > 5 {
		v.name = path.Base(strings.Join(fields[5:], " "))
	}
	return v, nil
}
