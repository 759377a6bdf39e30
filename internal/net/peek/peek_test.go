package peek

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
)

// hello returns what a TLS client sends first.
func hello(t testing.TB, name string) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		_ = tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
		_ = client.Close()
	}()
	p := make([]byte, MaxBytes)
	n, err := server.Read(p)
	if err != nil {
		t.Fatal(err)
	}
	return p[:n]
}

func TestServer(t *testing.T) {
	get := func(lines ...string) []byte { return []byte(strings.Join(lines, "\r\n") + "\r\n\r\n") }
	for name, c := range map[string]struct {
		sent []byte
		want string
	}{
		"TLS":                       {hello(t, "Example.com"), "example.com"},
		"TLS to an address":         {hello(t, "192.0.2.9"), ""},
		"TLS that ends early":       {hello(t, "example.com")[:40], ""},
		"HTTP":                      {get("GET / HTTP/1.1", "Host: Example.com"), "example.com"},
		"HTTP with port and dot":    {get("GET / HTTP/1.1", "User-Agent: x", "Host: example.com.:8080"), "example.com"},
		"HTTP to an address":        {get("GET / HTTP/1.1", "Host: 127.0.0.1:80"), ""},
		"HTTP to an IPv6 address":   {get("GET / HTTP/1.1", "Host: [::1]:80"), ""},
		"HTTP/1.0 without Host":     {get("GET / HTTP/1.0"), ""},
		"two Hosts":                 {get("GET / HTTP/1.1", "Host: a.example", "Host: b.example"), ""},
		"a URL and a Host":          {get("GET http://a.example/ HTTP/1.1", "Host: b.example"), ""},
		"CONNECT":                   {get("CONNECT a.example:443 HTTP/1.1", "Host: a.example"), ""},
		"a Host with other letters": {get("GET / HTTP/1.1", "Host: a\x01b"), ""},
		"HTTP that ends early":      {[]byte("GET / HTTP/1.1\r\nHost: a.exam"), ""},
		"HTTP/2 in plain text":      {[]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), ""},
		"SSH":                       {[]byte("SSH-2.0-OpenSSH_9.2\r\n"), ""},
		"nothing":                   {nil, ""},
		"a long header":             {bytes.Repeat([]byte("a"), 4*MaxBytes), ""},
	} {
		for way, r := range map[string]io.Reader{"at once": bytes.NewReader(c.sent), "by bytes": iotest.OneByteReader(bytes.NewReader(c.sent))} {
			got, sent, err := Server(r)
			if got != c.want || err != nil || !bytes.HasPrefix(c.sent, sent) || len(sent) > MaxBytes {
				t.Errorf("%s, %s: %q, %d bytes, %v, want %q", name, way, got, len(sent), err, c.want)
			}
			rest, _ := io.ReadAll(r)
			if !bytes.Equal(append(sent, rest...), c.sent) {
				t.Errorf("%s, %s: bytes got lost", name, way)
			}
		}
	}
}

func TestServerReportsAReaderThatFails(t *testing.T) {
	late := errors.New("late")
	for _, sent := range [][]byte{nil, hello(t, "example.com")[:100], []byte("GET / HT")} {
		name, got, err := Server(io.MultiReader(bytes.NewReader(sent), iotest.ErrReader(late)))
		if name != "" || !bytes.Equal(got, sent) || !errors.Is(err, late) {
			t.Errorf("after %d bytes: %q, %d bytes, %v", len(sent), name, len(got), err)
		}
	}
}

func FuzzServer(f *testing.F) {
	f.Add(hello(f, "example.com"))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"))
	f.Fuzz(func(t *testing.T, p []byte) {
		name, sent, err := Server(bytes.NewReader(p))
		if err != nil || !bytes.HasPrefix(p, sent) || name != canonical(name) {
			t.Errorf("%q, %d of %d bytes, %v", name, len(sent), len(p), err)
		}
	})
}
