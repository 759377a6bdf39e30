// Package plainhttp lets a TLS port answer clients that speak HTTP without TLS. It redirects these
// clients, and does not serve their requests.
package plainhttp

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Bounds on an unencrypted request to the TLS address.
const (
	maxPlainHead = 64 << 10 // bytes
	maxPlainBody = 1 << 20  // bytes that are read before the connection is closed
	plainTime    = 5 * time.Second
	plainLogs    = time.Minute // minimum time between two lines of the log
)

// Redirecting returns a listener of TLS connections. A client that speaks HTTP without TLS is
// redirected to https://, and no handler sees its request.
func Redirecting(l net.Listener, config *tls.Config, log *slog.Logger) net.Listener {
	return tls.NewListener(&sniffer{Listener: l, log: log}, config)
}

type sniffer struct {
	net.Listener
	log *slog.Logger

	mu     sync.Mutex
	logged time.Time
}

// Accept implements net.Listener.
func (s *sniffer) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &sniffed{Conn: conn, s: s}, nil
}

// sniffed is a connection that examines its first byte. It needs no lock, because only the TLS
// handshake reads the first byte.
type sniffed struct {
	net.Conn
	s      *sniffer
	looked bool
}

// Read implements net.Conn. It answers an unencrypted request itself and then closes the
// connection. It recognizes such a request by its first byte: every HTTP method begins with a
// capital letter, and no TLS record begins with one.
func (c *sniffed) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.looked || n == 0 {
		return n, err
	}
	c.looked = true
	if p[0] < 'A' || p[0] > 'Z' {
		return n, err
	}
	c.redirect(io.MultiReader(bytes.NewReader(bytes.Clone(p[:n])), c.Conn))
	return 0, io.EOF
}

// NetConn returns the wrapped connection.
func (c *sniffed) NetConn() net.Conn { return c.Conn }

// redirect redirects a request to the same address with https://.
func (c *sniffed) redirect(from io.Reader) {
	defer c.Conn.Close()
	_ = c.Conn.SetDeadline(time.Now().Add(plainTime)) // if the connection is closed, reading from it fails
	r, err := http.ReadRequest(bufio.NewReader(io.LimitReader(from, maxPlainHead)))
	// PRI begins an HTTP/2 connection, whose client does not understand an answer in HTTP/1.1.
	if err != nil || r.Method == "PRI" {
		return
	}
	c.s.note(r, c.RemoteAddr())
	status, location := "400 Bad Request", ""
	if path := r.URL.RequestURI(); r.Host != "" && path[0] == '/' {
		status, location = "308 Permanent Redirect", fmt.Sprintf("Location: https://%s%s\r\n", r.Host, path)
	}
	const text = "This port speaks HTTPS only: use https://\n"
	// Without "no-store", browsers would cache the 308, and would use https:// even after the
	// daemon is started without TLS.
	_, err = fmt.Fprintf(c.Conn,
		"HTTP/1.1 %s\r\n%sContent-Type: text/plain\r\nCache-Control: no-store\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		status, location, len(text), text)
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && err == nil && half.CloseWrite() == nil {
		// Read the rest of the request: unread bytes make the kernel reset the connection, and the
		// client loses the answer.
		_, _ = io.CopyN(io.Discard, c.Conn, maxPlainBody)
	}
}

// credentials are the headers in which clients send secrets.
var credentials = []string{"Authorization", "X-Api-Key", "X-Access-Token", "E2b-Traffic-Access-Token", "Cookie"}

// note logs that a request sent its credentials unencrypted. Anyone can send such requests, so at
// most one request is logged in each interval of plainLogs.
func (s *sniffer) note(r *http.Request, from net.Addr) {
	for _, name := range credentials {
		if r.Header.Get(name) == "" {
			continue
		}
		s.mu.Lock()
		due := time.Since(s.logged) >= plainLogs
		if due {
			s.logged = time.Now()
		}
		s.mu.Unlock()
		if due {
			s.log.Warn("a token was sent unencrypted, over http:// to the TLS address: replace it, and have its client use https://",
				"header", name, "remote", from.String())
		}
		return
	}
}
