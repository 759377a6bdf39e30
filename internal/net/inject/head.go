package inject

import (
	"errors"
	"net"
	"sync/atomic"
)

// maxLines bounds the header lines of one message. A short line takes fifty times its bytes when it
// is parsed.
const maxLines = 512

var errLines = errors.New("too many headers")

// headed is a connection whose reader refuses headers with too many lines. It counts lines from
// expect on, until an empty line or until parsed.
type headed struct {
	net.Conn
	counting atomic.Bool
	lines    int
	first    bool // the current line is the first of a header
	length   int  // length of the current line, without its end
	interim  bool // the header belongs to an interim answer (RFC 9110 §15.2), which another header follows
	refused  bool // stays set, because net/textproto ignores errors between two lines
}

// expect starts the counting because headers follow. It must not be called during a read.
func (h *headed) expect() {
	h.lines, h.first, h.length, h.interim = 0, true, 0, false
	h.counting.Store(true)
}

// parsed stops the counting because the following bytes are not headers.
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

// count counts the header lines in p and reports whether their number stays within the bound.
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
			h.first = h.length == 0 // true after an interim answer
			h.length = 0
			if h.lines++; h.lines > maxLines {
				return false
			}
		}
	}
	return true
}
