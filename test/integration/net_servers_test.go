package integration_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// hostAddress returns an address of this host that is neither loopback nor link-local. Sandboxes
// can connect to it only if a rule of their policy allows it.
func hostAddress(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, ok := a.(*net.IPNet); ok && p.IP.To4() != nil && p.IP.IsGlobalUnicast() {
			return p.IP.String()
		}
	}
	t.Fatal("this host has no address besides loopback")
	return ""
}

// server is a server outside the sandboxes. For clients that do not speak HTTP, it is an echo
// server.
type server struct {
	address string // host and port
	content []byte // answer to GET /file
	sum     string // SHA-256 of content, in hexadecimal
}

// serveFile starts an HTTP server with a file of size bytes. The server ends with the test.
func serveFile(t *testing.T, size int) server {
	t.Helper()
	return serveFileAtOnce(t, size, 1)
}

// serveFileAtOnce is like serveFile, but its server answers only when n clients have sent a
// request.
func serveFileAtOnce(t *testing.T, size, n int) server {
	t.Helper()
	s := server{content: make([]byte, size)}
	random := rand.NewChaCha8([32]byte{7})
	random.Read(s.content)
	sum := sha256.Sum256(s.content)
	s.sum = hex.EncodeToString(sum[:])
	l, err := net.Listen("tcp", net.JoinHostPort(hostAddress(t), "0"))
	if err != nil {
		t.Fatal(err)
	}
	s.address = l.Addr().String()
	var asked atomic.Int64
	all := make(chan struct{})
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == int64(n) {
			close(all)
		}
		select {
		case <-all:
		case <-r.Context().Done():
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(s.content))
	})}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return s
}

// serveEcho starts a server that sends its input back.
func serveEcho(t *testing.T) server {
	t.Helper()
	return serveTCP(t, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
}

// serveTCP starts a server that calls serve with every connection, and closes the connection
// afterwards.
func serveTCP(t *testing.T, serve func(net.Conn)) server {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(hostAddress(t), "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	return server{address: l.Addr().String()}
}

// of() returns the server's address as Python arguments.
func (s *server) of() string {
	host, port, _ := net.SplitHostPort(s.address)
	return fmt.Sprintf("%q, %s", host, port)
}

// serveDigest starts a server that answers with the SHA-256 of its input, in hexadecimal.
func serveDigest(t *testing.T) server {
	t.Helper()
	return serveTCP(t, func(conn net.Conn) {
		h := sha256.New()
		if _, err := io.Copy(h, conn); err == nil {
			_, _ = io.WriteString(conn, hex.EncodeToString(h.Sum(nil)))
		}
	})
}
