package inject

import (
	"errors"
	"net"
	"sync/atomic"
)

// maxLines bounds the header lines of one message. In memory, a short parsed line takes fifty times
// its length.
const maxLines = 512

var errLines = errors.New("too many headers")

// headed is a connection whose Read fails if a header has too many lines. It counts lines after a
// call of expect(), until an empty line or a call of parsed().
type headed struct {
	net.Conn
	counting atomic.Bool
	lines    int
	first    bool // whether the current line is the first line of a header
	length   int  // length of the current line, without its end
	interim  bool // whether this is the header of an interim answer (RFC 9110 §15.2), so another header follows
	// refused is set when Read has returned an error. All later calls return the same error,
	// because net/textproto ignores some errors.
	refused bool
}

// expect starts the count. It must be called when the next bytes are headers, but not during a
// Read.
func (h *headed) expect() {
	h.lines, h.first, h.length, h.interim = 0, true, 0, false
	h.counting.Store(true)
}

// parsed() stops the count. It must be called when the next bytes are not headers.
func (h *headed) parsed() { h.counting.Store(false) }

func (h *headed) Read(p []byte) (int, error) {
	if h.refused {
		return 0, errLines
	}
	n, err := h.Conn.Read(p)
	if h.counting.Load() && !h.count(p[:n]) {
		h.refused = true
		return 0, errLines
	}
	return n, err
}

// count counts the header lines in p, and reports whether the total is within maxLines.
func (h *headed) count(p []byte) bool {
	const status = len("HTTP/1.1 ") // position of the first digit of the status
	for _, c := range p {
		switch {
		case c == '\r':
		case c != '\n':
			if h.first && h.length == status {
				h.interim = c == '1'
			}
			h.length++
		case h.length == 0 && !h.interim:
			h.counting.Store(false)
			return true
		default:
			h.first = h.length == 0 // the first line after an interim answer
			h.length = 0
			if h.lines++; h.lines > maxLines {
				return false
			}
		}
	}
	return true
}
