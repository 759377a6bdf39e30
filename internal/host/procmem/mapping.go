package procmem

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
)

// mmapFloor is below everything that Linux places by itself on x86-64 (mm/util.c, mmap_base: at
// most 1 TiB of randomisation and the stack's limit below 128 TiB). The Go runtime asks for
// addresses far below it for its heap and for nothing else.
const mmapFloor = 0x7e0000000000

// mapping is one entry of smaps.
type mapping struct {
	start, end   uint64
	mode         string
	name         string // of the file, without its directory; empty for anonymous memory
	pss, private uint64 // KiB
}

func (v *mapping) binary() bool { return strings.Contains(v.name, "forkd-vmm") }

// mayBeGuest tells writable private memory from what the Go runtime has only reserved, which is
// longer.
func (v *mapping) mayBeGuest() bool {
	return v.mode == "rw-p" && (v.name == "" && v.start >= mmapFloor || strings.Contains(v.name, "layer"))
}

func readMappings(r io.Reader) ([]mapping, error) {
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

// parseHead reads "start-end perms offset dev inode [path]".
func parseHead(fields []string) (v mapping, err error) {
	if _, err = fmt.Sscanf(fields[0], "%x-%x", &v.start, &v.end); err != nil {
		return v, fmt.Errorf("smaps line %q: %w", strings.Join(fields, " "), err)
	}
	v.mode = fields[1]
	if len(fields) > 5 {
		v.name = path.Base(strings.Join(fields[5:], " "))
	}
	return v, nil
}
