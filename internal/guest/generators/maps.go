package generators

import (
	"bytes"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// region is one line of /proc/PID/maps. Its byte slices point into the search's buffer, so they are
// valid until the next process is opened.
type region struct {
	start, end uint64
	exec       bool
	anonymous  bool   // whether the region is writable, private and without a file
	loaded     bool   // whether the region is readable, not anonymous and without a file, such as generated code
	inode      []byte // device and inode of the file; empty if there is no file
	path       []byte
}

// readMaps reads the mappings of a process. It reuses the buffers of the search, because a browser
// has thousands of mappings, and forked sandboxes copy all memory that the agent allocates.
func (p *process) readMaps() error {
	fd, err := unix.Open(p.path(p.pid, "maps"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	text := p.maps[:0]
	for {
		text = slices.Grow(text, pageSize)
		n, err := unix.Read(fd, text[len(text):cap(text)])
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		text = text[:len(text)+n]
	}
	p.maps = text
	p.regions, err = parseMaps(text, p.regions[:0])
	return err
}

// parseMaps parses the text of /proc/PID/maps and appends its mappings to regions.
func parseMaps(text []byte, regions []region) ([]region, error) {
	for line := range bytes.Lines(text) {
		bad := func() ([]region, error) { return nil, fmt.Errorf("maps: %.80q", line) }
		span, rest := cutField(line)
		mode, rest := cutField(rest)
		_, rest = cutField(rest) // skip the offset
		device := rest
		_, rest = cutField(rest)
		number, rest := cutField(rest)
		if len(mode) != 4 || len(number) == 0 {
			return bad()
		}
		from, to, _ := bytes.Cut(span, []byte("-"))
		start, ok1 := hex(from)
		end, ok2 := hex(to)
		if !ok1 || !ok2 || end <= start {
			return bad()
		}
		r := region{start: start, end: end, exec: mode[2] == 'x'}
		r.path = bytes.TrimSuffix(bytes.TrimSpace(rest), []byte(" (deleted)"))
		if string(number) != "0" {
			r.inode = bytes.TrimLeft(device[:len(device)-len(rest)], " ")
		}
		plain := len(r.inode) == 0 && (len(r.path) == 0 || string(r.path) == "[heap]" ||
			bytes.HasPrefix(r.path, []byte("[anon:")))
		r.anonymous = plain && string(mode) == "rw-p"
		r.loaded = plain && !r.anonymous && mode[0] == 'r'
		regions = append(regions, r)
	}
	return regions, nil
}

// cutField returns the first word of a line, and the rest of the line.
func cutField(line []byte) (word, rest []byte) {
	line = bytes.TrimLeft(line, " ")
	end := bytes.IndexAny(line, " \n")
	if end < 0 {
		end = len(line)
	}
	return line[:end], line[end:]
}

// hex parses a hexadecimal number of up to 64 bits.
func hex(text []byte) (n uint64, ok bool) {
	for _, c := range text {
		digit := bytes.IndexByte([]byte("0123456789abcdef"), c)
		if digit < 0 || n>>60 != 0 {
			return 0, false
		}
		n = n<<4 | uint64(digit)
	}
	return n, len(text) > 0
}

// codeAt returns the path of the file whose code is mapped at addr, or nil.
func (p *process) codeAt(addr uint64) []byte {
	for i := range p.regions {
		if r := &p.regions[i]; r.exec && r.start <= addr && addr < r.end {
			return r.path
		}
	}
	return nil
}

// maxName bounds a name in the report, in bytes.
const maxName = 64

// base returns the last element of a path. It replaces all characters other than printable ASCII,
// because the guest's programs choose the path.
func base(path []byte) string {
	path = bytes.TrimSuffix(path, []byte(" (deleted)"))
	name := path[bytes.LastIndexByte(path, '/')+1:]
	name = bytes.Clone(name[:min(len(name), maxName)])
	for i, c := range name {
		if c < ' ' || c > '~' {
			name[i] = '?'
		}
	}
	return string(name)
}
