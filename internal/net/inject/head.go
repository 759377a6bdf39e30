package inject

import (
	"errors"
	"net"
	"sync/atomic"
)

// maxLines bounds the header lines of one message: parsed, a short line takes fifty times its
// bytes.
const maxLines = 512

var errLines = errors.New("too many headers")

// headed is a connection whose reader refuses headers with too many lines. It counts from expect
// until an empty line, or until parsed.
type headed struct {
	net.Conn
	counting atomic.Bool
	lines    int
	first    bool // the present line is the first of a header
	length   int  // of the present line, without its end
	interim  bool // the header belongs to an interim answer (RFC 9110 §15.2); another one follows
	refused  bool // stays set, because net/textproto ignores an error between two lines
}

// expect says that headers follow. It must not be called during a read.
func (h *headed) expect() {
	h.lines, h.first, h.length, h.interim = 0, true, 0, false
	h.counting.Store(true)
}

// parsed says that the following bytes are not headers.
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

// count reports whether the number of header lines stays within the bound with p.
func (h *headed) count(p []byte) bool {
	const status = len("HTTP/1.1 ") // the place of the first digit
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
			h.first = h.length == 0 // after an interim answer
			h.length = 0
			if h.lines++; h.lines > maxLines {
				return false
			}
		}
	}
	return true
}
