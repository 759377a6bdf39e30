package inject

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
)

// bytesConn is a connection that is only used for reading.
type bytesConn struct {
	net.Conn
	from io.Reader
}

func (c bytesConn) Read(p []byte) (int, error) { return c.from.Read(p) }

// An answer may have a limited number of headers. Lines of its body are not counted.
func TestHeadersAreCounted(t *testing.T) {
	answer := func(headers int, body string) string {
		return "HTTP/1.1 200 OK\r\n" + strings.Repeat("a:\r\n", headers) + "\r\n" + body
	}
	lines := strings.Repeat("\n", 3*maxLines)
	for name, c := range map[string]struct {
		text    string
		refused bool
	}{
		"few":                     {answer(10, ""), false},
		"a body of many lines":    {answer(10, lines), false},
		"as many as there may be": {answer(maxLines-1, lines), false},
		"one more":                {answer(maxLines, ""), true},
		"behind an interim one":   {"HTTP/1.1 100 Continue\r\n\r\n" + answer(maxLines, ""), true},
		"a body behind one":       {"HTTP/1.1 103 Early Hints\r\nb: c\r\n\r\n" + answer(10, lines), false},
	} {
		for way, from := range map[string]io.Reader{"at once": bytes.NewReader([]byte(c.text)),
			"by bytes": iotest.OneByteReader(bytes.NewReader([]byte(c.text)))} {
			h := &headed{Conn: bytesConn{from: from}}
			h.expect()
			if _, err := io.Copy(io.Discard, struct{ io.Reader }{h}); errors.Is(err, errLines) != c.refused {
				t.Errorf("%s, %s: %v, refused should be %v", name, way, err, c.refused)
			}
		}
	}
}
