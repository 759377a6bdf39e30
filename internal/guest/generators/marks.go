package generators

import (
	"bytes"
	"encoding/binary"
	"regexp"

	"golang.org/x/sys/unix"
)

// marks are the properties of a program or library that show which generators it may have.
type marks struct {
	repeats string // name of a generator that cannot be reseeded, if the file's name reveals one; otherwise ""

	openssl bool // it contains the generators of OpenSSL 1.1.1 or later
	golang  bool // it was built by the Go compiler
	rust    bool // it contains the Rust crate rand, as its panic messages reveal
}

var (
	// openSSL is the personalization string of OpenSSL's generators (crypto/rand/drbg_lib.c in
	// 1.1.1, DRBG_DEFAULT_PERS_STRING from 3.0 on). No other library contains it.
	openSSL = []byte("OpenSSL NIST SP 800-90A DRBG")
	// goNote is the head of the ELF note with the build id of a Go program: its type and owner.
	goNote = []byte("\x04\x00\x00\x00Go\x00\x00")
	// rustCrate is the source path of a Rust crate in a panic message.
	rustCrate = regexp.MustCompile(`/rand(_core|_chacha)?-0\.\d+\.\d+/src/`)
)

// fileID identifies the content of a file. A write to the file changes sec and nanosec.
type fileID struct {
	dev, inode   uint64
	size         int64
	sec, nanosec int64 // time of the inode's last change
}

// maxFiles bounds the files whose marks are remembered.
const maxFiles = 1 << 14

// marks returns the marks of a file that a process uses. The parameter link is the path of a link
// to the file, below /proc/PID; name is the file's own name. The search remembers the marks of each
// file, so the children of a snapshot need not read a file that was read before the snapshot.
func (p *process) marks(link, name string) (m marks, err error) {
	var info unix.Stat_t
	path := p.path(p.pid, link)
	if err := unix.Stat(path, &info); err != nil {
		return m, err
	}
	id := fileID{info.Dev, info.Ino, info.Size, info.Ctim.Sec, info.Ctim.Nsec}
	m, ok := p.files[id]
	if ok {
		return m, nil
	}
	if info.Mode&unix.S_IFMT == unix.S_IFREG {
		if m, err = p.readMarks(path); err != nil {
			return m, err
		}
	}
	m.repeats = known(name)
	if len(p.files) >= maxFiles {
		clear(p.files)
	}
	p.files[id] = m
	return m, nil
}

// maxHead bounds the part of a file that contains its ELF notes.
const maxHead = 16 << 10

// readMarks searches the constants of a program or library for marks. It bypasses the page cache if
// the file system permits that. Pages in the cache would become part of every snapshot.
func (s *search) readMarks(path string) (m marks, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_DIRECT|unix.O_NONBLOCK, 0)
	if err != nil {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return m, err
	}
	defer unix.Close(fd)
	head := s.chunk[:maxHead]
	n, err := unix.Pread(fd, head, 0)
	if err != nil || !bytes.HasPrefix(head[:n], []byte("\x7fELF")) {
		return m, err
	}
	m.golang = bytes.Contains(head[:n], goNote)
	for _, part := range constants(head[:n]) {
		if err := s.readPart(fd, part, &m); err != nil {
			return m, err
		}
	}
	return m, nil
}

// readPart searches a part of a file. The part may extend beyond the file's end. readPart reads in
// steps. It searches the bytes of each step together with the last bytes of the previous step, so
// that it finds a mark that extends over both.
func (s *search) readPart(fd int, part span, m *marks) error {
	const overlap = 256 // no mark is longer
	memory, chunk := s.chunk, s.chunk[pageSize:]
	text := chunk[:0]
	for at := part.from &^ (pageSize - 1); at < part.to; at += int64(len(chunk)) {
		n := min(int64(len(chunk)), (part.to-at+pageSize-1)&^(pageSize-1))
		if err := s.spend(int(n)); err != nil {
			return err
		}
		kept := copy(memory[pageSize-min(overlap, len(text)):pageSize], text[max(0, len(text)-overlap):])
		got, err := unix.Pread(fd, chunk[:n], at)
		if err != nil {
			return err
		}
		text = memory[pageSize-kept : pageSize+got]
		m.openssl = m.openssl || bytes.Contains(text, openSSL)
		m.rust = m.rust || hasRustCrate(text)
		if int64(got) < n {
			return nil
		}
	}
	return nil
}

// maxOffset is larger than the offset of any byte of a file.
const maxOffset = 1 << 61

// span is a part of a file.
type span struct{ from, to int64 }

// constants returns the parts of an ELF file that contain its constants. These are the read-only
// segments, if the linker has separated them from the code, and otherwise the whole file. The
// parameter head is the beginning of the file. elf(5) describes the layout.
func constants(head []byte) []span {
	whole := []span{{0, maxOffset}}
	const class64, headerSize, entrySize = 2, 64, 56
	if len(head) < headerSize || head[4] != class64 {
		return whole
	}
	table := binary.LittleEndian.Uint64(head[32:])
	size, n := binary.LittleEndian.Uint16(head[54:]), uint64(binary.LittleEndian.Uint16(head[56:]))
	if size != entrySize || table > uint64(len(head)) || n*entrySize > uint64(len(head))-table {
		return whole
	}
	var parts []span
	for i := range n {
		entry := head[table+i*entrySize:]
		const load, write, execute = 1, 2, 1
		kind, flags := binary.LittleEndian.Uint32(entry), binary.LittleEndian.Uint32(entry[4:])
		from, length := binary.LittleEndian.Uint64(entry[8:]), binary.LittleEndian.Uint64(entry[32:])
		if kind != load || flags&write != 0 || length == 0 {
			continue
		}
		if from == 0 && flags&execute != 0 || from > maxOffset || length > maxOffset {
			return whole // code and constants share a segment
		}
		if flags&execute == 0 {
			parts = append(parts, span{int64(from), int64(from + length)})
		}
	}
	if len(parts) == 0 {
		return whole
	}
	return parts
}

// hasRustCrate reports whether the given text has the source path of the crate rand.
func hasRustCrate(text []byte) (found bool) {
	_ = eachIndex(text, []byte("/rand"), func(i int) error {
		loc := rustCrate.FindIndex(text[i:min(len(text), i+64)])
		found = found || loc != nil && loc[0] == 0
		return nil
	})
	return found
}
