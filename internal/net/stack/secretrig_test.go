package stack

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/net/flowlog"
	"github.com/forkd/forkd/internal/net/guesttest"
	"github.com/forkd/forkd/internal/net/inject"
	"github.com/forkd/forkd/internal/net/nettest"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// signer is a certificate authority.
type signer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newSigner(t testing.TB) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour),
		NotAfter:  time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return &signer{c, key}
}

// config returns the TLS configuration for a server with the given names.
func (s *signer) config(t testing.TB, names ...string) *tls.Config {
	t.Helper()
	c := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), DNSNames: names}
	der, err := x509.CreateCertificate(rand.Reader, c, s.cert, &s.key.PublicKey, s.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: s.key}}}
}

func (s *signer) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Raw})
}

// site is an HTTPS server that records its requests.
type site struct {
	mu       sync.Mutex
	requests []string // method, host, path, Authorization headers and body
}

// serveSite runs a site in the world. It redirects /redirect to another server, and answers every
// other request with "hello".
func serveSite(t testing.TB, w *nettest.World, addr string, config *tls.Config) *site {
	t.Helper()
	s := &site{}
	server := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(s.serve)}
	l := tls.NewListener(w.Listen(t, addr), config)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return s
}

func (s *site) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.requests = append(s.requests, fmt.Sprintf("%s %s %s %q %s", r.Method, r.Host, r.RequestURI,
		r.Header["Authorization"], body))
	s.mu.Unlock()
	if r.URL.Path == "/redirect" {
		http.Redirect(w, r, "https://other.example/", http.StatusFound)
		return
	}
	_, _ = io.WriteString(w, "hello")
}

// heard returns the requests that the server has received since the previous call.
func (s *site) heard() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.requests
	s.requests = nil
	return r
}

// vault is a rig whose sandbox has a secret for api.example.
type vault struct {
	*rig
	world     *nettest.World
	zone      *zone
	authority *signer    // CA that the guest trusts
	roots     *signer    // CA that the host trusts
	flows     *logBuffer // the flow log
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *logBuffer) Close() error { return nil }

func (b *logBuffer) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b.Reset()
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// lost returns the number of dropped records that is reported in the log.
func (b *logBuffer) lost(t *testing.T) uint64 {
	t.Helper()
	var sum uint64
	for line := range strings.Lines(b.String()) {
		var r flowlog.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		sum += r.Lost
	}
	return sum
}

func newVault(t testing.TB, policy string) *vault {
	t.Helper()
	v := &vault{world: newWorld(t), authority: newSigner(t), roots: newSigner(t), flows: &logBuffer{}}
	h := NewHost(10000)
	h.Log.Set(v.flows)
	key, err := x509.MarshalPKCS8PrivateKey(v.authority.key)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := inject.NewTrust(v.authority.cert.Raw, key, v.roots.pem())
	if err != nil {
		t.Fatal(err)
	}
	h.SetTrust(trust)
	v.zone = serveDNS(t, v.world, h, "api.example="+web, "other.example="+web)
	v.rig = addSecretRig(t, v.world, h, policy)
	return v
}

func addSecretRig(t testing.TB, w *nettest.World, h *Host, policy string) *rig {
	t.Helper()
	guest, file := guesttest.New(t)
	s, err := New(h, file, &netproto.Attach{ID: "sb-test", Policy: makePolicy(t, policy),
		Secrets: []netproto.Secret{{Host: "api.example", Header: "Authorization", Value: secretValue}}}, &Counters{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return &rig{world: w, guest: guest, host: h, Stack: s}
}

// dialTLS makes a TLS connection with a server name, as a program in the guest does.
func (v *vault) dialTLS(t testing.TB, to, name string, trusted ...*signer) (*tls.Conn, error) {
	t.Helper()
	c, err := v.dial(t, to)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	pool := x509.NewCertPool()
	for _, s := range append(trusted, v.authority) {
		pool.AddCert(s.cert)
	}
	secure := tls.Client(c, &tls.Config{ServerName: name, RootCAs: pool})
	return secure, secure.Handshake()
}

func (v *vault) mustDialTLS(t testing.TB, to, name string, trusted ...*signer) *tls.Conn {
	t.Helper()
	c, err := v.dialTLS(t, to, name, trusted...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ask writes a request as it is, and returns the status and the whole answer.
func ask(t testing.TB, c net.Conn, request string) (int, string) {
	t.Helper()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var head bytes.Buffer
	_ = resp.Header.Write(&head)
	return resp.StatusCode, head.String() + string(body)
}

func get(host, path string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nAuthorization: " + placeholder + "\r\n\r\n"
}

// clean waits until the log contains the given text. It fails the test if the log contains the
// secret.
func (v *vault) clean(t testing.TB, logged string) {
	t.Helper()
	waitFor(t, "the log has "+logged, func() bool { return strings.Contains(v.flows.String(), logged) })
	if text := v.flows.String(); strings.Contains(text, "s3cr3t") {
		t.Errorf("the flow log has the secret: %s", text)
	}
}
