// Package imageproto defines the stream from which a builder VM fills a blank disk with the files
// of a container image. The client that has the image sends the stream, and the daemon forwards it
// to forkd-unpack.
//
//	length (4 bytes, little-endian), Header as JSON
//	for each layer: chunks, each a length (as above, not 0) and that many bytes; then a length of 0
//
// forkd-unpack dials Port of the host, mounts the disk, reads the stream and answers with one line:
// an Answer as JSON. If forkd-unpack fails, it may send the Answer before the end of the stream.
//
// Only forkd-unpack parses the layers. The daemon forwards the stream without parsing it.
package imageproto

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Port is the vsock port of the host that forkd-unpack dials.
const Port = 1028

// Bounds of messages and chunks, in bytes.
const (
	maxHeader = 1 << 20
	maxChunk  = 1 << 20
	maxAnswer = 64 << 10
)

// MaxLayers bounds the number of layers of a stream. Docker makes at most 127.
const MaxLayers = 1001

// Header describes the layers of a stream, beginning with the lowest.
type Header struct {
	Layers []Layer `json:"layers"`
	User   bool    `json:"user,omitempty"` // whether to add the account "user" if the image has no such account
}

// Layer is a tar archive, plain or compressed with gzip or zstd.
type Layer struct {
	// DiffID is the digest that the uncompressed archive must have ("sha256:…"); empty: any.
	DiffID string `json:"diff_id,omitempty"`

	// Files is true for the layer with the files of a recipe. A file of this layer may replace an
	// existing file. It is an error if a directory would replace a file, or if a file would replace
	// a directory. Existing directories keep their owner and mode.
	Files bool `json:"files,omitempty"`
}

// Answer is forkd-unpack's last message.
type Answer struct {
	Error string `json:"error,omitempty"` // empty: the disk is complete and unmounted
}

// WriteAnswer writes the answer of forkd-unpack with the given error; nil means success.
func WriteAnswer(w io.Writer, refused error) error {
	var a Answer
	if refused != nil {
		a.Error = refused.Error()
		a.Error = a.Error[:min(len(a.Error), maxAnswer/8)] // in JSON, one byte may take 6 bytes
	}
	line, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}

// RefusedError is the error in an answer. Its text comes from forkd-unpack and is not safe to
// print.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// ReadAnswer reads an answer. If forkd-unpack has refused the stream, the error is a *RefusedError.
func ReadAnswer(r io.Reader) error {
	line, err := bufio.NewReader(io.LimitReader(r, maxAnswer)).ReadBytes('\n')
	var a Answer
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if err != nil {
		return fmt.Errorf("read the answer of forkd-unpack: %w", whole(err))
	}
	if a.Error != "" {
		return &RefusedError{a.Error}
	}
	return nil
}

// Check returns an error if the header is invalid.
func (h *Header) Check() error {
	if len(h.Layers) > MaxLayers {
		return fmt.Errorf("layers: %d of them: want at most %d", len(h.Layers), MaxLayers)
	}
	for i, l := range h.Layers {
		if l.DiffID != "" && !isSHA256(l.DiffID) {
			return fmt.Errorf("layers[%d].diff_id: %.80q: want sha256: and 64 hexadecimal digits", i, l.DiffID)
		}
	}
	return nil
}

func isSHA256(s string) bool {
	const prefix = "sha256:"
	if len(s) != len(prefix)+64 || s[:len(prefix)] != prefix {
		return false
	}
	for _, c := range s[len(prefix):] {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// WriteHeader writes the header, with which a stream begins.
func WriteHeader(w io.Writer, h Header) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if len(text) > maxHeader {
		return fmt.Errorf("header of %d bytes: at most %d", len(text), maxHeader)
	}
	return writeChunk(w, text)
}

// WriteLayer reads the content of one layer and writes it to the stream. Only io.EOF ends the
// layer. io.ErrUnexpectedEOF is an error like any other, because readers of network connections
// return it if content is cut off.
func WriteLayer(w io.Writer, from io.Reader) error {
	buf := make([]byte, maxChunk)
	for n := 0; ; {
		m, err := from.Read(buf[n:])
		if n += m; n > 0 && (n == len(buf) || err != nil) {
			if err := writeChunk(w, buf[:n]); err != nil {
				return err
			}
			n = 0
		}
		if err == io.EOF {
			return writeChunk(w, nil)
		}
		if err != nil {
			return err
		}
	}
}

func writeChunk(w io.Writer, p []byte) error {
	if _, err := w.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(p)))); err != nil || len(p) == 0 {
		return err
	}
	_, err := w.Write(p)
	return err
}

// Reader reads a stream. The caller calls Header first, and then Layer for each layer.
type Reader struct{ r io.Reader }

// NewReader returns a Reader of the stream r.
func NewReader(r io.Reader) *Reader { return &Reader{r} }

// Header reads and checks the header.
func (r *Reader) Header() (h Header, err error) {
	n, err := r.length(maxHeader)
	if err != nil {
		return h, fmt.Errorf("read header: %w", err)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r.r, text); err != nil {
		return h, fmt.Errorf("read header: %w", whole(err))
	}
	if err := json.Unmarshal(text, &h); err != nil {
		return h, fmt.Errorf("read header: %w", err)
	}
	return h, h.Check()
}

// Layer returns a reader of the next layer. The layer must be read to its end before the next call.
func (r *Reader) Layer() io.Reader { return &layerReader{r: r} }

func (r *Reader) length(most uint32) (uint32, error) {
	var b [4]byte
	if _, err := io.ReadFull(r.r, b[:]); err != nil {
		return 0, whole(err)
	}
	n := binary.LittleEndian.Uint32(b[:])
	if n > most {
		return 0, fmt.Errorf("a chunk of %d bytes: at most %d", n, most)
	}
	return n, nil
}

// whole converts io.EOF to io.ErrUnexpectedEOF, where the stream must not end.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

type layerReader struct {
	r    *Reader
	left uint32 // unread bytes of the current chunk
	end  bool
}

// Read implements io.Reader.
func (l *layerReader) Read(p []byte) (int, error) {
	if l.end {
		return 0, io.EOF
	}
	if l.left == 0 {
		n, err := l.r.length(maxChunk)
		if err != nil {
			return 0, err
		}
		if l.left, l.end = n, n == 0; l.end {
			return 0, io.EOF
		}
	}
	n, err := l.r.r.Read(p[:min(uint64(len(p)), uint64(l.left))])
	l.left -= uint32(n)
	return n, whole(err)
}
