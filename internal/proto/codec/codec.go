// Package codec encodes the small binary records that forkd's processes exchange and store: control
// messages between daemon and VMM, and saved device state.
//
// Integers are little-endian and of fixed width; byte strings carry a 32-bit length. A Reader never
// panics and never allocates more than its input holds, so it can read hostile bytes. The package
// does not know any message. It has no reflection, no field names and no versions; versions are up
// to its callers.
package codec

import (
	"encoding/binary"
	"errors"
)

// ErrShort reports input that ended before the end of a value.
var ErrShort = errors.New("truncated record")

// Kind is the first byte of a message on a control socket. Every protocol defines its own kinds.
type Kind uint8

// Message is a value that can be encoded.
type Message interface{ Append(w *Writer) }

// Writer appends values to a byte slice. The zero Writer is ready to use.
type Writer struct{ buf []byte }

// Bytes returns what was written so far; it aliases the Writer's buffer.
func (w *Writer) Bytes() []byte { return w.buf }

// U8 appends one byte.
func (w *Writer) U8(v uint8) { w.buf = append(w.buf, v) }

// Bool appends 1 for true, 0 for false.
func (w *Writer) Bool(v bool) {
	if v {
		w.U8(1)
	} else {
		w.U8(0)
	}
}

// U16 appends v.
func (w *Writer) U16(v uint16) { w.buf = binary.LittleEndian.AppendUint16(w.buf, v) }

// U32 appends v.
func (w *Writer) U32(v uint32) { w.buf = binary.LittleEndian.AppendUint32(w.buf, v) }

// U64 appends v.
func (w *Writer) U64(v uint64) { w.buf = binary.LittleEndian.AppendUint64(w.buf, v) }

// Raw appends p without a length.
func (w *Writer) Raw(p []byte) { w.buf = append(w.buf, p...) }

// Blob appends the length of p, then p.
func (w *Writer) Blob(p []byte) {
	w.U32(uint32(len(p)))
	w.Raw(p)
}

// String appends the length of s, then s.
func (w *Writer) String(s string) {
	w.U32(uint32(len(s)))
	w.buf = append(w.buf, s...)
}

// Reader reads values from a byte slice. After the first failure every method returns a zero value
// and Err reports the failure, so callers check once, at the end.
type Reader struct {
	buf []byte
	err error
}

// NewReader returns a Reader over p, which it does not copy.
func NewReader(p []byte) *Reader { return &Reader{buf: p} }

// Err returns the first failure, or nil.
func (r *Reader) Err() error { return r.err }

// Done returns the first failure, or an error if bytes are left over.
func (r *Reader) Done() error {
	if r.err == nil && len(r.buf) != 0 {
		r.err = errors.New("trailing bytes after record")
	}
	return r.err
}

// Len returns the number of unread bytes.
func (r *Reader) Len() int { return len(r.buf) }

// Raw takes the next n bytes; the result aliases the input.
func (r *Reader) Raw(n int) []byte {
	if r.err != nil || n < 0 || n > len(r.buf) {
		if r.err == nil {
			r.err = ErrShort
		}
		return nil
	}
	p := r.buf[:n:n]
	r.buf = r.buf[n:]
	return p
}

// U8 takes one byte.
func (r *Reader) U8() uint8 {
	if p := r.Raw(1); p != nil {
		return p[0]
	}
	return 0
}

// Bool takes one byte and reports whether it is not zero.
func (r *Reader) Bool() bool { return r.U8() != 0 }

// U16 takes two bytes.
func (r *Reader) U16() uint16 {
	if p := r.Raw(2); p != nil {
		return binary.LittleEndian.Uint16(p)
	}
	return 0
}

// U32 takes four bytes.
func (r *Reader) U32() uint32 {
	if p := r.Raw(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

// U64 takes eight bytes.
func (r *Reader) U64() uint64 {
	if p := r.Raw(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

// Blob takes a length and that many bytes; the result aliases the input.
func (r *Reader) Blob() []byte { return r.Raw(r.count(1)) }

// String takes a length and that many bytes.
func (r *Reader) String() string { return string(r.Blob()) }

// Count reads an element count. It checks that as many elements of at least size bytes can follow,
// so that the caller can safely allocate memory for them.
func (r *Reader) Count(size int) int { return r.count(size) }

func (r *Reader) count(size int) int {
	n := r.U32()
	if uint64(n)*uint64(size) > uint64(len(r.buf)) {
		if r.err == nil {
			r.err = ErrShort
		}
		return 0
	}
	return int(n)
}
