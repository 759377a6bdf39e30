package generators

import (
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"

	"golang.org/x/sys/unix"
)

// marks are what the name and the content of a program or library say about its generators.
type marks struct {
	repeats string // the generator that its name gives away and that cannot be reseeded; or ""

	openssl bool // it has the generators of OpenSSL 1.1.1 or later
	golang  bool // Go built it
	rust    bool // it has the Rust crate rand, and still its panic messages
}

var (
	// openSSL is the personalization string of OpenSSL's generators (crypto/rand/drbg_lib.c in 1.1.1,
	// DRBG_DEFAULT_PERS_STRING from 3.0 on). No other library has it.
	openSSL = []byte("OpenSSL NIST SP 800-90A DRBG")
	// goNote is the head of the ELF note with the build id of a Go program: its type and owner.
	goNote = []byte("\x04\x00\x00\x00Go\x00\x00")
	// rustCrate is the source path of a Rust crate in a panic message.
	rustCrate = regexp.MustCompile(`/rand(_core|_chacha)?-0\.\d+\.\d+/src/`)
)

// fileID identifies the content of a file. A write changes the time.
type fileID struct {
	dev, inode   uint64
	size         int64
	sec, nanosec int64 // of the last change of the inode
}

// maxFiles bounds the files whose marks are remembered.
const maxFiles = 1 << 14

// marks returns the marks of a file that a process has mapped. link is the path of a link to the
// file below /proc/PID, and name is the file's own name. inode is its device and inode in the maps
// of the process, or "". Each file is read once. A snapshot has the marks of the programs that run
// in it, so its children need not read them.
func (p *process) marks(inode, link, name string) (marks, error) {
	if m, ok := p.mapped[inode]; ok {
		return m, nil
	}
	var info unix.Stat_t
	path := p.path(p.pid, link)
	if err := unix.Stat(path, &info); err != nil {
		return marks{}, err
	}
	id := fileID{info.Dev, info.Ino, info.Size, info.Ctim.Sec, info.Ctim.Nsec}
	m, ok := p.files[id]
	if !ok {
		if info.Mode&unix.S_IFMT == unix.S_IFREG {
			var err error
			if m, err = p.readMarks(path); err != nil {
				return marks{}, err
			}
		}
		m.repeats = known(name)
		if len(p.files) >= maxFiles {
			clear(p.files)
		}
		p.files[id] = m
	}
	if inode != "" {
		p.mapped[inode] = m
	}
	return m, nil
}

// maxHead bounds the part of a file that has its ELF notes.
const maxHead = 16 << 10

// readMarks reads a file in steps, each with the last bytes of the one before. It bypasses the page
// cache where the file system can, because pages in the cache would be in every snapshot.
func (s *search) readMarks(path string) (m marks, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_DIRECT|unix.O_NONBLOCK, 0)
	if err != nil {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return m, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	const overlap = 256 // no mark is longer
	memory := s.buffer()
	chunk := memory[pageSize:] // at a page boundary, as O_DIRECT asks
	text := chunk[:0]
	for at := int64(0); ; at += int64(len(chunk)) {
		if err := s.spend(len(chunk)); err != nil {
			return m, err
		}
		kept := copy(memory[pageSize-min(overlap, len(text)):pageSize], text[max(0, len(text)-overlap):])
		n, err := f.ReadAt(chunk, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return m, err
		}
		if at == 0 {
			if !bytes.HasPrefix(chunk[:n], []byte("\x7fELF")) {
				return m, nil
			}
			m.golang = bytes.Contains(chunk[:min(n, maxHead)], goNote)
		}
		text = memory[pageSize-kept : pageSize+n]
		m.openssl = m.openssl || bytes.Contains(text, openSSL)
		m.rust = m.rust || hasRustCrate(text)
		if err != nil {
			return m, nil
		}
	}
}

// hasRustCrate reports whether text has the source path of the crate rand.
func hasRustCrate(text []byte) (found bool) {
	_ = eachIndex(text, []byte("/rand"), func(i int) error {
		loc := rustCrate.FindIndex(text[i:min(len(text), i+64)])
		found = found || loc != nil && loc[0] == 0
		return nil
	})
	return found
}
