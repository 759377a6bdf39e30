// Package console keeps the last bytes of a guest's serial output in a file that outlives the VMM.
//
// The file is a ring buffer. The VMM maps the file and stores bytes in the mapping. Any process may
// read the newest bytes at any time. A guest that floods its console overwrites its own oldest
// output. The file also stores when each block of the ring was last written, so that a reader can
// omit older blocks. The package does not interpret the output.
package console

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Size is the number of bytes that a ring keeps.
const Size = 64 << 10

// header is the length of the header in bytes. The header begins with the number of bytes written
// since Format. Then it has, for each block of the ring, the time of the block's last byte, in
// milliseconds of Unix time, or 0 if the time is unknown. All numbers are little-endian. Readers
// take no lock, so a reader may miss the byte that is being written. The header fills one page, so
// that the data after it is page-aligned.
const header = 4096

// block is the size of a block in bytes. It holds a few lines, and is large enough that the times
// of all blocks fit into the header.
const (
	block  = 256
	blocks = Size / block
	times  = 8 // offset of the blocks' times in the header
)

// Format makes the new file f an empty ring. It allocates all blocks of the file, because on a full
// file system a store to a mapped hole would kill the writer with a SIGBUS.
func Format(f *os.File) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, header+Size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = f.WriteAt(make([]byte, header+Size), 0)
	}
	if err != nil {
		return fmt.Errorf("make console ring: %w", err)
	}
	return nil
}

// Ring writes to a ring. It has one writer at a time.
type Ring struct {
	mem     []byte
	written uint64 // copy of the count in the header, because reading the header would map many pages of the file
}

// Open maps the ring in f, which may be closed afterwards.
func Open(f *os.File) (*Ring, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open console ring: %w", err)
	}
	if st.Size() != header+Size {
		return nil, fmt.Errorf("open console ring: %d bytes, want %d", st.Size(), header+Size)
	}
	written, err := Written(f)
	if err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, header+Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map console ring: %w", err)
	}
	return &Ring{mem: mem, written: written}, nil
}

// Close unmaps the ring.
func (r *Ring) Close() error { return unix.Munmap(r.mem) }

// WriteByte appends c. It never fails.
func (r *Ring) WriteByte(c byte) error {
	r.mem[header+r.written%Size] = c
	binary.LittleEndian.PutUint64(r.mem[times+8*slot(r.written):], uint64(time.Now().UnixMilli()))
	r.written++
	binary.LittleEndian.PutUint64(r.mem, r.written)
	return nil
}

// WriteString appends s. It never fails.
func (r *Ring) WriteString(s string) {
	for i := range len(s) {
		_ = r.WriteByte(s[i])
	}
}

// Tail returns the content of the ring, oldest byte first.
func (r *Ring) Tail() []byte { return tail(r.written, r.mem[header:]) }

// slot returns the number of the block that contains a byte, given the number of bytes written
// before that byte.
func slot(at uint64) uint64 { return at / block % blocks }

// Text is the content of a ring at the time of a read.
type Text struct {
	Bytes   []byte // oldest first
	Written uint64 // number of bytes written since Format, including Bytes

	times [blocks]uint64
}

// Tail reads the ring in f.
func Tail(f io.ReaderAt) (t Text, err error) {
	var buf [header + Size]byte
	if n, err := f.ReadAt(buf[:], 0); n < len(buf) {
		return t, errors.Join(errors.New("read console ring: file is too short"), err)
	}
	t.Written = binary.LittleEndian.Uint64(buf[:])
	t.Bytes = tail(t.Written, buf[header:])
	for i := range t.times {
		t.times[i] = binary.LittleEndian.Uint64(buf[times+8*i:])
	}
	return t, nil
}

// Written returns the total number of bytes written to the ring in f.
func Written(f io.ReaderAt) (uint64, error) {
	var head [8]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return 0, fmt.Errorf("read console ring: %w", err)
	}
	return binary.LittleEndian.Uint64(head[:]), nil
}

// Behind returns the bytes that a caller has not seen yet. The caller has already seen the given
// number of bytes, counted from Format on. Behind also returns how many bytes are lost, because the
// ring has overwritten them before the caller saw them.
func (t *Text) Behind(seen uint64) (p []byte, lost uint64) {
	first := t.Written - uint64(len(t.Bytes))
	switch {
	case seen >= t.Written:
		return nil, 0
	case seen < first:
		return t.Bytes, first - seen
	}
	return t.Bytes[seen-first:], 0
}

// Since returns the lines that were written at or after a time. It omits whole blocks only, so the
// result may begin with lines from shortly before that time. Lines of unknown time are included.
func (t *Text) Since(at time.Time) []byte {
	first := t.Written - uint64(len(t.Bytes))
	// The ring's oldest and newest bytes share one block, so the oldest bytes have the time of the
	// newest bytes.
	for i := (block - first%block) % block; i < uint64(len(t.Bytes)); i += block {
		if when := t.times[slot(first+i)]; when == 0 || int64(when) >= at.UnixMilli() {
			return t.Bytes[bytes.LastIndexByte(t.Bytes[:i], '\n')+1:]
		}
	}
	return nil
}

// tail returns the bytes of a ring in order, given the total number of bytes written to it.
func tail(total uint64, data []byte) []byte {
	if total <= Size {
		return append([]byte(nil), data[:total]...)
	}
	at := total % Size
	return append(append(make([]byte, 0, Size), data[at:]...), data[:at]...)
}
