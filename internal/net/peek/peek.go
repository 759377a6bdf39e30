// Package peek reads a client's first bytes to find out which server a TCP connection is for. The
// server is named in a TLS ClientHello (RFC 6066 §3), or in the Host header of an HTTP/1 request
// (RFC 9112 §3.2).
//
// The package reads at most MaxBytes, stores them for forwarding, and sends nothing. It parses a
// request only after all headers have arrived, so an endless request takes no more than MaxBytes.
// The caller must bound the time by setting a read deadline. The package cannot see later data,
// such as the Host header inside TLS.
package peek

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"
)

// MaxBytes is the maximum number of bytes that are read to find a name. A ClientHello with keys for
// post-quantum key exchange has 2 KiB, and servers accept 8 KiB of HTTP headers.
const MaxBytes = 16 << 10

// recordHandshake is the first byte of a TLS connection (RFC 8446 §5.1).
const recordHandshake = 22

// Seen is the result of Server.
type Seen struct {
	Name    string // name of the server, in the normalized form of package policy; "" if there is none
	Unclear bool   // whether different servers could interpret the request differently; Name is then empty
	ECH     bool   // whether the ClientHello may contain another, encrypted name (RFC 9849); Name is the unencrypted name
	Sent    []byte // all bytes that were read
}

// Server reads from r until it knows which server the client names. If the data is neither TLS nor
// HTTP, or r ends, it returns no name and no error. If a read has failed or MaxBytes have been
// read, and later bytes could still name a server, the result is unclear.
func Server(r io.Reader) (Seen, error) {
	t := &tee{from: r}
	in := bufio.NewReaderSize(t, 4096)
	var seen Seen
	first, err := in.Peek(1)
	switch {
	case err != nil:
		seen.Unclear = !errors.Is(err, io.EOF) // the client may name a server later
	case first[0] == recordHandshake:
		seen.Name, seen.ECH, seen.Unclear = tlsName(in)
	default:
		seen.Unclear = true
		if t.readHead() {
			seen.Name, seen.Unclear = httpName(t.sent.Bytes())
		}
		seen.Unclear = seen.Unclear && isHTTP(t.sent.Bytes(), errors.Is(t.err, io.EOF))
	}
	seen.Sent = t.sent.Bytes()
	return seen, t.failure()
}

// maxLines bounds the number of lines of a request. Most lines are headers. In memory, a short
// parsed line takes twenty times its length. Browsers send thirty lines.
const maxLines = 256

// readHead reads to the end of a request's headers, and reports whether the headers are complete.
// It stops as soon as the data cannot be a request, because a client of another protocol may wait
// for the server to answer.
func (t *tee) readHead() (whole bool) {
	from, lines := 0, 0 // start of the current line in sent, and number of lines before it
	part := make([]byte, 1024)
	for lines <= maxLines {
		line, _, ended := bytes.Cut(t.sent.Bytes()[from:], []byte("\n"))
		if !ended {
			if _, err := t.Read(part); err != nil {
				return false
			}
			continue
		}
		from += len(line) + 1
		line = bytes.TrimSuffix(line, []byte("\r"))
		switch {
		case len(line) > 0 && lines == 0:
			if _, err := parse(slices.Concat(line, []byte("\r\n\r\n"))); err != nil {
				return false
			}
		case len(line) == 0 && lines > 0:
			return true
		case len(line) == 0:
			continue // servers skip empty lines before the request (RFC 9112 §2.2)
		}
		lines++
	}
	return false
}

// parse parses a request whose headers are complete.
func parse(head []byte) (*http.Request, error) {
	return http.ReadRequest(bufio.NewReaderSize(bytes.NewReader(head), 4096))
}

// isHTTP reports whether the first line of p is, or may become, a line that some server accepts as
// a request line. Servers skip empty lines before the request line (RFC 9112 §2.2). If whole is
// true, the client sends nothing after p.
func isHTTP(p []byte, whole bool) bool {
	line, _, ended := bytes.Cut(bytes.TrimLeft(p, "\r\n"), []byte("\n"))
	switch {
	case bytes.Contains(bytes.ToUpper(line), []byte("HTTP/")):
		return true
	case ended:
		return false
	case whole:
		return beginning.Match(line)
	}
	return beginning.Match(line) || method.Match(line)
}

// Beginnings of a request line (RFC 9112 §3): a method, white space that some servers accept, and one
// byte more; or a method that may be incomplete.
var (
	beginning = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+[ \t\v\f\r]+[^ \t\v\f\r]")
	method    = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]*[ \t\v\f\r]*$")
)

// tee is a reader that stores what it reads, up to MaxBytes.
type tee struct {
	from io.Reader
	sent bytes.Buffer
	err  error
}

func (t *tee) Read(p []byte) (int, error) {
	left := MaxBytes - t.sent.Len()
	if left == 0 {
		return 0, errors.New("too long for a ClientHello or a request")
	}
	n, err := t.from.Read(p[:min(len(p), left)])
	t.sent.Write(p[:n])
	t.err = err
	return n, err
}

func (t *tee) failure() error {
	if errors.Is(t.err, io.EOF) {
		return nil
	}
	return t.err
}

// errSeen aborts a handshake after the ClientHello.
var errSeen = errors.New("seen")

// extensionECH is encrypted_client_hello (RFC 9849 §5).
const extensionECH = 0xfe0d

// tlsName returns the server name of a ClientHello. If ech is true, the ClientHello contains an
// encrypted name, or random bytes that look like one and that browsers send if they have no
// encrypted name (RFC 9849 §6.2). If unclear is true, Go's parser refuses the ClientHello, or the
// ClientHello is longer than MaxBytes. Some servers may accept such a ClientHello.
func tlsName(in io.Reader) (name string, ech, unclear bool) {
	unclear = true
	server := tls.Server(readOnly{in}, &tls.Config{
		MinVersion: tls.VersionTLS10, // irrelevant, because the handshake is never completed
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name, ech, unclear = hello.ServerName, slices.Contains(hello.Extensions, extensionECH), false
			return nil, errSeen
		},
	})
	_ = server.Handshake() // returns errSeen, or another error if no name was seen
	return canonical(name), ech, unclear
}

func httpName(sent []byte) (name string, unclear bool) {
	req, err := parse(sent)
	if err != nil {
		return "", true // for example because it has two Host headers
	}
	// If the request line contains an absolute URL, servers should use its host and ignore the Host
	// header, which ReadRequest then omits. Some servers use the header nevertheless, so such a
	// request counts as naming no server.
	if req.URL.Host != "" || req.Method == http.MethodConnect || req.ProtoMajor != 1 {
		return "", true
	}
	for key := range req.Header {
		if strings.EqualFold(strings.TrimSpace(key), "Host") { // unlike Go, some servers accept "Host :" as Host
			return "", true
		}
	}
	host := req.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || host == "" {
		return "", false
	}
	name = canonical(host)
	return name, name == ""
}

// canonical returns a name in lower case without a trailing dot. It returns "" if the name has a
// character other than underscores and the characters of host names (RFC 1123 §2.1).
func canonical(name string) string {
	name = strings.TrimSuffix(name, ".")
	if len(name) > 253 {
		return ""
	}
	for _, c := range []byte(name) { // check before ToLower, which turns some non-ASCII letters into ASCII
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
		default:
			return ""
		}
	}
	name = strings.ToLower(name)
	if _, err := netip.ParseAddr(name); err == nil {
		return ""
	}
	return name
}

// readOnly is a net.Conn on which only Read works.
type readOnly struct{ io.Reader }

func (readOnly) Write(p []byte) (int, error)      { return len(p), nil }
func (readOnly) Close() error                     { return nil }
func (readOnly) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (readOnly) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (readOnly) SetDeadline(time.Time) error      { return nil }
func (readOnly) SetReadDeadline(time.Time) error  { return nil }
func (readOnly) SetWriteDeadline(time.Time) error { return nil }
