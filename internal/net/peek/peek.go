// Package peek finds out which server a TCP connection asks for from the first bytes that its
// client sends: the server name of a TLS ClientHello (RFC 6066 §3), or the Host of an HTTP/1
// request (RFC 9112 §3.2).
//
// It reads at most MaxBytes, keeps them for whoever forwards the connection, and answers nothing. A
// request is parsed when all of its headers are there, so that one that never ends costs its bytes.
// How long it may take is for the reader's deadline to say. What comes after, such as the Host
// inside of TLS, it cannot see.
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
	"slices"
	"strings"
	"time"
)

// MaxBytes bounds what is read for a name: a ClientHello with keys for post-quantum exchanges has 2
// KiB, and servers take 8 KiB of HTTP headers.
const MaxBytes = 16 << 10

// recordHandshake is the first byte of a TLS connection (RFC 8446 §5.1).
const recordHandshake = 22

// Seen is what a connection says first.
type Seen struct {
	Name    string // of the server, as package policy spells names; "" if there is none
	Unclear bool   // it is a request that servers could read differently: Name is empty
	ECH     bool   // Name is only the outer one: another may be encrypted (RFC 9849)
	Sent    []byte // all that was read
}

// Server reads from r until it knows the server that the client names. An error other than the end
// of r means that r failed; what is neither TLS nor HTTP has no name and is no error.
func Server(r io.Reader) (Seen, error) {
	t := &tee{from: r}
	in := bufio.NewReaderSize(t, 4096)
	var seen Seen
	first, err := in.Peek(1)
	switch {
	case err != nil:
	case first[0] == recordHandshake:
		seen.Name, seen.ECH, seen.Unclear = tlsName(in)
	default:
		seen.Unclear = true
		if t.readHead() {
			seen.Name, seen.Unclear = httpName(t.sent.Bytes())
		}
		seen.Unclear = seen.Unclear && isHTTP(t.sent.Bytes())
	}
	seen.Sent = t.sent.Bytes()
	return seen, t.failure()
}

// maxLines bounds the lines of a request, most of which are headers: parsed, a short one takes twenty
// times its bytes. Browsers send thirty.
const maxLines = 256

// readHead reads to the end of the headers of a request, and reports whether it is there. It reads no
// further than to where it is clear that there is no request: a client of another protocol may wait
// for an answer.
func (t *tee) readHead() (whole bool) {
	from, lines := 0, 0 // of what was sent: the line that is looked at, and those before it
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

// parse reads a request that is all there.
func parse(head []byte) (*http.Request, error) {
	return http.ReadRequest(bufio.NewReaderSize(bytes.NewReader(head), 4096))
}

// isHTTP reports whether the first line is, or could be taken for, that of a request. Servers skip
// empty lines before it (RFC 9112 §2.2).
func isHTTP(p []byte) bool {
	line, _, _ := bytes.Cut(bytes.TrimLeft(p, "\r\n"), []byte("\n"))
	return bytes.Contains(bytes.ToUpper(line), []byte("HTTP/"))
}

// tee reads up to MaxBytes and remembers them.
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

// errSeen ends a handshake after the ClientHello.
var errSeen = errors.New("seen")

// extensionECH is encrypted_client_hello (RFC 9849 §5).
const extensionECH = 0xfe0d

// tlsName returns the server name of a ClientHello, and whether it has an encrypted one or the
// random bytes that browsers send in its place: the two cannot be told apart (RFC 9849 §6.2). A
// ClientHello that Go's parser refuses, or that is longer than MaxBytes, is unclear: servers may
// accept it.
func tlsName(in io.Reader) (name string, ech, unclear bool) {
	unclear = true
	server := tls.Server(readOnly{in}, &tls.Config{
		MinVersion: tls.VersionTLS10, // it is not us who speaks it
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name, ech, unclear = hello.ServerName, slices.Contains(hello.Extensions, extensionECH), false
			return nil, errSeen
		},
	})
	_ = server.Handshake() // it ends with errSeen, or has seen no name
	return canonical(name), ech, unclear
}

func httpName(sent []byte) (name string, unclear bool) {
	req, err := parse(sent)
	if err != nil {
		return "", true // such as for two Hosts
	}
	// The host of an absolute URL goes before the header, which ReadRequest then leaves out.
	// Servers differ in which of them they believe, so a proxy's form of a request is none that
	// names a server here.
	if req.URL.Host != "" || req.Method == http.MethodConnect || req.ProtoMajor != 1 {
		return "", true
	}
	for key := range req.Header {
		if strings.EqualFold(strings.TrimSpace(key), "Host") { // Go keeps "Host :" apart from Host
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

// canonical returns a name in lower case and without the dot at its end, or "" for what is no name:
// the characters of host names (RFC 1123 §2.1), and underscores.
func canonical(name string) string {
	name = strings.TrimSuffix(name, ".")
	if len(name) > 253 {
		return ""
	}
	for _, c := range []byte(name) { // before it is lowered, which makes ASCII of some other letters
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

// readOnly is a connection that is only read from.
type readOnly struct{ io.Reader }

func (readOnly) Write(p []byte) (int, error)      { return len(p), nil }
func (readOnly) Close() error                     { return nil }
func (readOnly) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (readOnly) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (readOnly) SetDeadline(time.Time) error      { return nil }
func (readOnly) SetReadDeadline(time.Time) error  { return nil }
func (readOnly) SetWriteDeadline(time.Time) error { return nil }
