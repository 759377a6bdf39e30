package peek

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/forkd/forkd/internal/net/guesttest"
)

// hello returns the first message of a TLS client.
func hello(t testing.TB, name string) []byte { return helloOf(t, &tls.Config{ServerName: name}) }

func helloOf(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	config.InsecureSkipVerify = true
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		_ = tls.Client(client, config).Handshake()
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
	many := func(headers int) []byte {
		return get(append([]string{"GET / HTTP/1.1", "Host: a.example"}, slices.Repeat([]string{"a: b"}, headers)...)...)
	}
	for name, c := range map[string]struct {
		sent    []byte
		want    string
		unclear bool
	}{
		"TLS":                 {hello(t, "Example.com"), "example.com", false},
		"TLS to an address":   {hello(t, "192.0.2.9"), "", false},
		"TLS that ends early": {hello(t, "example.com")[:40], "", true},
		"HTTP":                {get("GET / HTTP/1.1", "Host: Example.com"), "example.com", false},
		"HTTP with port and dot": {get("GET / HTTP/1.1", "User-Agent: x", "Host: example.com.:8080"), "example.com",
			false},
		"HTTP to an address":         {get("GET / HTTP/1.1", "Host: 127.0.0.1:80"), "", false},
		"HTTP to an IPv6 address":    {get("GET / HTTP/1.1", "Host: [::1]:80"), "", false},
		"HTTP/1.0 without Host":      {get("GET / HTTP/1.0"), "", false},
		"two Hosts":                  {get("GET / HTTP/1.1", "Host: a.example", "Host: b.example"), "", true},
		"a URL and a Host":           {get("GET http://a.example/ HTTP/1.1", "Host: b.example"), "", true},
		"CONNECT":                    {get("CONNECT a.example:443 HTTP/1.1", "Host: a.example"), "", true},
		"a Host with other letters":  {get("GET / HTTP/1.1", "Host: a\x01b"), "", true},
		"HTTP that ends early":       {[]byte("GET / HTTP/1.1\r\nHost: a.exam"), "", true},
		"HTTP/2 in plain text":       {[]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "", true},
		"SSH":                        {[]byte("SSH-2.0-OpenSSH_9.2\r\n"), "", false},
		"nothing":                    {nil, "", false},
		"many headers":               {many(maxLines - 10), "a.example", false},
		"too many headers":           {many(maxLines), "", true},
		"a request line that stops":  {[]byte("GET /x"), "", true},
		"a long request line":        {[]byte("GET /" + strings.Repeat("a", 4*MaxBytes)), "", true},
		"one word":                   {[]byte("PING"), "", false},
		"a line of another protocol": {[]byte("EHLO a.example\r\n"), "", false},
		"a long method":              {bytes.Repeat([]byte("a"), 4*MaxBytes), "", true},
		"many empty lines":           {bytes.Repeat([]byte("\r\n"), 4*MaxBytes), "", true},
		"a long line after a tab":    {[]byte("GET\t/" + strings.Repeat("a", 4*MaxBytes)), "", true},
		"long binary data":           {bytes.Repeat([]byte{1}, 4*MaxBytes), "", false},
	} {
		for way, r := range map[string]io.Reader{"at once": bytes.NewReader(c.sent),
			"by bytes": iotest.OneByteReader(bytes.NewReader(c.sent))} {
			got, err := Server(r)
			if got.Name != c.want || got.Unclear != c.unclear || err != nil || !bytes.HasPrefix(c.sent, got.Sent) ||
				len(got.Sent) > MaxBytes {
				t.Errorf("%s, %s: %q, %v, %d bytes, %v, want %q", name, way, got.Name, got.Unclear, len(got.Sent), err, c.want)
			}
			rest, _ := io.ReadAll(r)
			if !bytes.Equal(append(got.Sent, rest...), c.sent) {
				t.Errorf("%s, %s: bytes got lost", name, way)
			}
		}
	}
}

func TestServerReportsAReaderThatFails(t *testing.T) {
	late := errors.New("late")
	for _, sent := range [][]byte{nil, hello(t, "example.com")[:100], []byte("GET / HT")} {
		got, err := Server(io.MultiReader(bytes.NewReader(sent), iotest.ErrReader(late)))
		if got.Name != "" || !bytes.Equal(got.Sent, sent) || !errors.Is(err, late) {
			t.Errorf("after %d bytes: %q, %d bytes, %v", len(sent), got.Name, len(got.Sent), err)
		}
	}
}

// A read fails before the client has named a server. If later bytes could still name a server, the
// result is unclear.
func TestServerOfASlowClient(t *testing.T) {
	late := errors.New("late")
	for sent, want := range map[string]bool{"": true, "\r\n": true, "G": true, "GET": true, "GET ": true, "GET /x": true,
		"GET\t/x": true, "GET / HTTP/1.1\r\nHos": true, "SSH-2.0-OpenSSH_9.2\r\n": false, "\x10\x20": false} {
		got, _ := Server(io.MultiReader(strings.NewReader(sent), iotest.ErrReader(late)))
		if got.Name != "" || got.Unclear != want {
			t.Errorf("%q: %q, unclear: %v, want %v", sent, got.Name, got.Unclear, want)
		}
	}
}

// Go's parsers refuse some requests that servers accept. Such a request must count as unclear, and
// not as a request that names no server.
func TestServerThatOthersWouldRead(t *testing.T) {
	long := make([]string, 3000)
	for i := range long {
		long[i] = "some-protocol"
	}
	for name, sent := range map[string][]byte{
		"an empty line before the request":    []byte("\r\nGET / HTTP/1.1\r\nHost: a.example\r\n\r\n"),
		"empty lines, and two Hosts":          []byte("\r\n\nGET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n"),
		"a space before the colon":            []byte("GET / HTTP/1.1\r\nHost : a.example\r\n\r\n"),
		"a ClientHello of more than MaxBytes": helloOf(t, &tls.Config{ServerName: "a.example", NextProtos: long}),
		"a dot at the end of the server name": bytes.Replace(hello(t, "a.exampleX"), []byte("a.exampleX"),
			[]byte("a.example."), 1),
	} {
		if seen, err := Server(bytes.NewReader(sent)); err != nil || seen.Name != "" && seen.Name != "a.example" ||
			seen.Name == "" && !seen.Unclear {
			t.Errorf("%s: %q, unclear %v, %v", name, seen.Name, seen.Unclear, err)
		}
	}
}

func FuzzServer(f *testing.F) {
	f.Add(hello(f, "example.com"))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"))
	f.Fuzz(func(t *testing.T, p []byte) {
		got, err := Server(bytes.NewReader(p))
		if err != nil || !bytes.HasPrefix(p, got.Sent) || got.Name != canonical(got.Name) || got.Unclear && got.Name != "" {
			t.Errorf("%q, %v, %d of %d bytes, %v", got.Name, got.Unclear, len(got.Sent), len(p), err)
		}
	})
}

// If a ClientHello encrypts its server's name, Server returns the unencrypted outer name and sets
// ECH.
func TestServerWithECH(t *testing.T) {
	sent := helloOf(t, &tls.Config{ServerName: "exfil.example", MinVersion: tls.VersionTLS13,
		EncryptedClientHelloConfigList: guesttest.ECHConfigs(t, "front.example")})
	if seen, err := Server(bytes.NewReader(sent)); seen.Name != "front.example" || !seen.ECH || err != nil {
		t.Errorf("%q, %v, %v", seen.Name, seen.ECH, err)
	}
	if seen, _ := Server(bytes.NewReader(hello(t, "front.example"))); seen.ECH {
		t.Error("a ClientHello without the extension")
	}
}
