// Package crypt is the format of encrypted files of a snapshot.
//
// An encrypted file has an unencrypted header and frames of AES-256-GCM. A frame has an offset in
// the file and the data there, so holes take no space. The key of a file is derived from a Key, a
// random salt and the whole header. The nonce of a frame is its number, with a mark in the last
// frame. So Decode detects a changed header, and frames that were changed, removed, repeated,
// exchanged, or taken from another file.
//
// The package neither stores nor wraps keys, and it does not know which file has which name.
package crypt

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
)

// Suffix is appended to the name of a file to name its encrypted form.
const Suffix = ".enc"

// Limits and lengths, in bytes.
const (
	IDBytes    = 16 // a key's ID, which has twice as many characters
	maxFrame   = 1 << 20
	saltBytes  = 32
	maxName    = 255
	fixedBytes = 8 + 4 + 4 + IDBytes + saltBytes + 8 + 8 + 2 // the header without the name
)

const (
	magic   = "FORKDENC"
	version = 1
)

// Key encrypts all files of one family of snapshots.
type Key [32]byte

// NewID returns a random ID for a key.
func NewID() string {
	var id [IDBytes]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// CheckID returns an error if text is not the ID of a key.
func CheckID(text string) error {
	if id, err := hex.DecodeString(text); err != nil || hex.EncodeToString(id) != text || len(id) != IDBytes {
		return fmt.Errorf("%.40q is not the id of a key: want %d hexadecimal digits", text, 2*IDBytes)
	}
	return nil
}

// Header describes an encrypted file. It is not secret.
type Header struct {
	KeyID string // see NewID
	Name  string // identifies the file, 1 to 255 bytes; see snapshot.PortableName
	Bytes uint64 // length of the file
	Data  uint64 // bytes of the file without its holes
}

// encode returns the bytes of a header.
func (h *Header) encode(salt []byte) ([]byte, error) {
	if err := CheckID(h.KeyID); err != nil {
		return nil, err
	}
	if h.Name == "" || len(h.Name) > maxName || h.Data > h.Bytes || h.Bytes > math.MaxInt64 {
		return nil, fmt.Errorf("a file %.60q of %d bytes with %d bytes of data cannot be encrypted", h.Name, h.Bytes, h.Data)
	}
	id, _ := hex.DecodeString(h.KeyID) // CheckID has accepted it
	p := make([]byte, 0, fixedBytes+len(h.Name))
	p = append(p, magic...)
	p = binary.LittleEndian.AppendUint32(p, version)
	p = binary.LittleEndian.AppendUint32(p, maxFrame)
	p = append(append(p, id...), salt...)
	p = binary.LittleEndian.AppendUint64(p, h.Bytes)
	p = binary.LittleEndian.AppendUint64(p, h.Data)
	p = binary.LittleEndian.AppendUint16(p, uint16(len(h.Name)))
	return append(p, h.Name...), nil
}

// aead returns the cipher of the file with the given header.
func aead(key *Key, header []byte) (cipher.AEAD, error) {
	salt := header[16+IDBytes : 16+IDBytes+saltBytes]
	own, err := hkdf.Key(sha256.New, key[:], salt, "forkd encrypted file "+string(header), 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(own)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// nonce returns the nonce of a frame.
func nonce(number uint64, last bool) []byte {
	p := make([]byte, 12)
	binary.LittleEndian.PutUint64(p, number)
	if last {
		p[11] = 1
	}
	return p
}

// Writer encrypts one file.
type Writer struct {
	to     io.Writer
	seal   cipher.AEAD
	header Header
	next   uint64 // number of the next frame
	end    uint64 // end of the data that was written
	data   uint64 // bytes of data that were written
	plain  []byte
	frame  []byte
}

// NewWriter writes the header of an encrypted file.
func NewWriter(to io.Writer, key *Key, h Header) (*Writer, error) {
	salt := make([]byte, saltBytes)
	_, _ = rand.Read(salt) // never fails
	p, err := h.encode(salt)
	if err != nil {
		return nil, err
	}
	seal, err := aead(key, p)
	if err != nil {
		return nil, err
	}
	_, err = to.Write(p)
	return &Writer{to: to, seal: seal, header: h}, err
}

// Write encrypts data of the file at the given offset. Offsets ascend.
func (w *Writer) Write(at uint64, p []byte) error {
	if at < w.end || at > w.header.Bytes || uint64(len(p)) > w.header.Bytes-at {
		return fmt.Errorf("encrypt %s: %d bytes at %d do not follow", w.header.Name, len(p), at)
	}
	for len(p) > 0 {
		n := min(len(p), maxFrame)
		if err := w.put(at, p[:n], false); err != nil {
			return err
		}
		at, p = at+uint64(n), p[n:]
		w.end, w.data = at, w.data+uint64(n)
	}
	return nil
}

// Close writes the last frame. It does not close the underlying writer.
func (w *Writer) Close() error {
	if w.data != w.header.Data {
		return fmt.Errorf("encrypt %s: it has %d bytes of data, and had %d: it was changed", w.header.Name, w.data,
			w.header.Data)
	}
	return w.put(w.header.Bytes, nil, true)
}

func (w *Writer) put(at uint64, p []byte, last bool) error {
	w.plain = append(binary.LittleEndian.AppendUint64(w.plain[:0], at), p...)
	w.frame = binary.LittleEndian.AppendUint32(w.frame[:0], uint32(len(w.plain)+w.seal.Overhead()))
	w.frame = w.seal.Seal(w.frame, nonce(w.next, last), w.plain, nil)
	w.next++
	_, err := w.to.Write(w.frame)
	return err
}

// ErrChanged reports a file that cannot be decrypted.
var ErrChanged = errors.New("it was changed or truncated, or has another key")

// Reader decrypts one file.
type Reader struct {
	Header
	from   io.Reader
	header []byte
}

// NewReader reads the header of an encrypted file. Decode verifies the header.
func NewReader(from io.Reader) (*Reader, error) {
	p := make([]byte, fixedBytes)
	if _, err := io.ReadFull(from, p); err != nil {
		return nil, truncated(err)
	}
	switch v := binary.LittleEndian.Uint32(p[8:]); {
	case string(p[:8]) != magic:
		return nil, errors.New("not an encrypted file of forkd")
	case v != version:
		return nil, fmt.Errorf("encrypted file of version %d: this forkd reads %d", v, version)
	case binary.LittleEndian.Uint32(p[12:]) != maxFrame:
		return nil, ErrChanged
	}
	r := &Reader{from: from}
	sizes := p[16+IDBytes+saltBytes:]
	r.KeyID = hex.EncodeToString(p[16 : 16+IDBytes])
	r.Bytes, r.Data = binary.LittleEndian.Uint64(sizes), binary.LittleEndian.Uint64(sizes[8:])
	name := make([]byte, binary.LittleEndian.Uint16(sizes[16:]))
	if len(name) == 0 || len(name) > maxName || r.Data > r.Bytes || r.Bytes > math.MaxInt64 {
		return nil, ErrChanged
	}
	if _, err := io.ReadFull(from, name); err != nil {
		return nil, truncated(err)
	}
	r.Name, r.header = string(name), append(p, name...)
	return r, nil
}

// truncated replaces the error of a file that ends too early.
func truncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrChanged
	}
	return err
}

// Decode decrypts the file, and calls write(at, p) for its data, with ascending offsets. Data is
// verified before the callback receives it. If Decode returns an error, the callback may not have
// received all data.
func (r *Reader) Decode(key *Key, write func(at uint64, p []byte) error) error {
	open, err := aead(key, r.header)
	if err != nil {
		return err
	}
	var size [4]byte
	var end, data uint64
	frame := make([]byte, 8+maxFrame+open.Overhead())
	for n := uint64(0); ; n++ {
		if _, err := io.ReadFull(r.from, size[:]); err != nil {
			return truncated(err)
		}
		length := binary.LittleEndian.Uint32(size[:])
		if length < uint32(8+open.Overhead()) || uint64(length) > uint64(len(frame)) {
			return ErrChanged
		}
		if _, err := io.ReadFull(r.from, frame[:length]); err != nil {
			return truncated(err)
		}
		last := length == uint32(8+open.Overhead()) // only the last frame has no data
		plain, err := open.Open(frame[:0], nonce(n, last), frame[:length], nil)
		if err != nil {
			return ErrChanged
		}
		at, p := binary.LittleEndian.Uint64(plain), plain[8:]
		if last {
			return r.finish(data)
		}
		if at < end || at > r.Bytes || uint64(len(p)) > r.Bytes-at {
			return ErrChanged
		}
		if err := write(at, p); err != nil {
			return err
		}
		end, data = at+uint64(len(p)), data+uint64(len(p))
	}
}

// finish checks that nothing follows the last frame, and that no data is missing.
func (r *Reader) finish(data uint64) error {
	var more [1]byte
	if n, err := r.from.Read(more[:]); n > 0 || !errors.Is(err, io.EOF) || data != r.Data {
		return ErrChanged
	}
	return nil
}
