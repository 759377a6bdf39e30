// Package console keeps the last bytes of a guest's serial output in a file that outlives the VMM.
//
// The file is a ring in shared memory: the VMM stores bytes, anybody may read the tail at any time,
// and a guest that floods its console overwrites its own oldest output. Nothing is interpreted.
package console

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Size is the number of bytes that a ring keeps.
const Size = 64 << 10

// header is the bytes written since the ring was made (little-endian, read without a lock: a reader
// may miss the byte that is being written) before the ring itself; it has a page of its own so that
// the data is page-aligned.
const header = 4096

// Format makes f an empty ring.
func Format(f *os.File) error {
	if err := f.Truncate(header + Size); err != nil {
		return fmt.Errorf("make console ring: %w", err)
	}
	return nil
}

// Ring writes to a ring. It has one writer at a time.
type Ring struct {
	mem     []byte
	written uint64 // what the header says, kept here: reading a mapped file maps many of its pages at once
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
	var head [8]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return nil, fmt.Errorf("open console ring: %w", err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, header+Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map console ring: %w", err)
	}
	return &Ring{mem: mem, written: binary.LittleEndian.Uint64(head[:])}, nil
}

// Close unmaps the ring.
func (r *Ring) Close() error { return unix.Munmap(r.mem) }

// WriteByte appends c. It never fails.
func (r *Ring) WriteByte(c byte) error {
	r.mem[header+r.written%Size] = c
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

// Tail returns what the ring holds, oldest byte first.
func (r *Ring) Tail() []byte { return tail(r.written, r.mem[header:]) }

// Tail reads what the ring in f holds, oldest byte first, and how many bytes have been written in all.
func Tail(f io.ReaderAt) (held []byte, written uint64, err error) {
	var buf [header + Size]byte
	if n, err := f.ReadAt(buf[:], 0); n < len(buf) {
		return nil, 0, errors.Join(errors.New("read console ring: file is too short"), err)
	}
	written = binary.LittleEndian.Uint64(buf[:])
	return tail(written, buf[header:]), written, nil
}

// tail puts the bytes of a ring in order to which total bytes have been written.
func tail(total uint64, data []byte) []byte {
	if total <= Size {
		return append([]byte(nil), data[:total]...)
	}
	at := total % Size
	return append(append(make([]byte, 0, Size), data[at:]...), data[:at]...)
}
