// Package codec encodes small binary records that forkd's processes exchange or store: control
// messages between the daemon and its VMMs, and saved device state.
//
// Integers are little-endian and have a fixed width. A byte string is preceded by its length in 32
// bits. A Reader never panics and never allocates more than the length of its input, so it can read
// input that is not trusted. The package defines no message. Records contain no field names and no
// versions; callers that need versions add them.
package codec

import (
	"encoding/binary"
	"errors"
)

// ErrShort means that the input ended within a value.
var ErrShort = errors.New("truncated record")

// Kind is the first byte of a message on a control socket. Every protocol defines its own kinds.
type Kind uint8

// Message is a value that can be encoded.
type Message interface{ Append(w *Writer) }

// Writer appends values to a byte slice. The zero Writer is ready to use.
type Writer struct{ buf []byte }

// Bytes returns the encoded values. The result shares the Writer's buffer.
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

// Reader reads values from a byte slice. After the first failure, every method returns a zero
// value. So callers need to check Err or Done only once, at the end.
type Reader struct {
	buf []byte
	err error
}

// NewReader returns a Reader over p, which it does not copy.
func NewReader(p []byte) *Reader { return &Reader{buf: p} }

// Err returns the first failure, or nil.
func (r *Reader) Err() error { return r.err }

// Done returns the first failure, or an error if unread bytes remain.
func (r *Reader) Done() error {
	if r.err == nil && len(r.buf) != 0 {
		r.err = errors.New("trailing bytes after record")
	}
	return r.err
}

// Len returns the number of unread bytes.
func (r *Reader) Len() int { return len(r.buf) }

// Raw reads the next n bytes. The result is a part of the input, not a copy.
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

// Blob takes a length and as many bytes as the length says. The result aliases the input.
func (r *Reader) Blob() []byte { return r.Raw(r.count(1)) }

// String takes a length and as many bytes as the length says.
func (r *Reader) String() string { return string(r.Blob()) }

// Count reads the number of elements that follow. The parameter size is the minimum size of an
// element in bytes. Count checks that the input has room for the elements, so that the caller can
// safely allocate memory for them.
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
