package generators

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// region is one line of /proc/PID/maps.
type region struct {
	start, end uint64
	exec       bool
	anonymous  bool   // writable, private and without a file
	loaded     bool   // readable and without a file, but not anonymous: code that the program has put there
	inode      string // device and inode of the file; "" without one
	path       string
}

// parseMaps returns the mappings of a process.
func parseMaps(text []byte) ([]region, error) {
	var regions []region
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		if len(fields) < 5 || len(fields[1]) != 4 {
			return nil, fmt.Errorf("maps: %.80q", line)
		}
		from, to, _ := strings.Cut(fields[0], "-")
		start, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err := errors.Join(err1, err2); err != nil || end <= start {
			return nil, fmt.Errorf("maps: %.80q", line)
		}
		r := region{start: start, end: end, exec: fields[1][2] == 'x'}
		if len(fields) > 5 {
			r.path = strings.TrimSuffix(strings.Join(fields[5:], " "), " (deleted)")
		}
		if fields[4] != "0" {
			r.inode = fields[3] + " " + fields[4]
		}
		plain := r.inode == "" && (r.path == "" || r.path == "[heap]" || strings.HasPrefix(r.path, "[anon:"))
		r.anonymous = plain && fields[1] == "rw-p"
		r.loaded = plain && !r.anonymous && fields[1][0] == 'r'
		regions = append(regions, r)
	}
	return regions, nil
}

// codeAt returns the file whose code is mapped at an address, or "".
func (p *process) codeAt(addr uint64) string {
	for i := range p.regions {
		if r := &p.regions[i]; r.exec && r.start <= addr && addr < r.end {
			return r.path
		}
	}
	return ""
}

// maxName bounds a name in the report, in bytes.
const maxName = 64

// base returns the last element of a path, with characters other than printable ASCII replaced,
// because the guest's programs choose it.
func base(path string) string {
	path = strings.TrimSuffix(path, " (deleted)")
	name := []byte(path[strings.LastIndexByte(path, '/')+1:])
	name = name[:min(len(name), maxName)]
	for i, c := range name {
		if c < ' ' || c > '~' {
			name[i] = '?'
		}
	}
	return string(name)
}
