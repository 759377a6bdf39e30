package integration_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/forkd/forkd/client"
)

// Names of the server of TestSecretStaysOutside. The policy adds the secret only to requests for
// secretHost.
const (
	secretHost = "api.example.com"
	otherHost  = "other.example.com"
)

// secretCode asks a server whether it has received the secret. It uses TLS with the root
// certificates of the image.
const secretCode = `python3 - <<'END'
import ssl, urllib.request
def ask(host, context=None):
    r = urllib.request.Request("https://%%s/" %% host, headers={"Authorization": "placeholder"})
    return urllib.request.urlopen(r, timeout=60, context=context).read().decode()
print(ask(%q), ask(%q, ssl._create_unverified_context()))
END`

// TestSecretStaysOutside checks that the daemon adds a secret header to a guest's request, and that
// the guest never has the secret. The guest trusts the daemon's authority, and the daemon verifies
// the server against the host's root certificates. In a request to another name with the same
// address, the server receives the header that the guest has sent.
func TestSecretStaysOutside(t *testing.T) {
	f := load(t)
	secret := "Bearer " + rand.Text()
	address, roots := serveSecret(t, secret)
	t.Setenv("SSL_CERT_FILE", roots) // the host's root certificates, as the daemon sees them
	d := f.start(t, withChecks, withArgs("--resolver", serveNames(t, address)))
	box := d.online(t, 1, client.Network{
		Mode: "allow", Allow: []string{address + ":443", secretHost, otherHost},
		Secrets: []client.NetworkSecret{{Host: secretHost, Header: "Authorization", Value: secret}},
	})[0]
	ask := fmt.Sprintf(secretCode, secretHost, otherHost)
	const want = "the secret another"
	if got := strings.TrimSpace(d.sh(t, box.ID, ask)); got != want {
		t.Fatalf("the servers were sent: %q, want %q", got, want)
	}
	n, err := d.Network(d.ctx(t, quietLimit), box.ID)
	if err != nil || len(n.Secrets) != 1 || n.Secrets[0].Host != secretHost || n.Secrets[0].Value != "" {
		t.Errorf("network of the sandbox: %+v, %v", n, err)
	}
	d.kill(t, box)
}

// serveSecret starts an HTTPS server, see serveHTTPS. Its answer says whether it has received the
// secret.
func serveSecret(t *testing.T, secret string) (address, roots string) {
	t.Helper()
	return serveHTTPS(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == secret {
			fmt.Fprint(w, "the secret")
		} else {
			fmt.Fprint(w, "another")
		}
	})
}

// serveHTTPS starts an HTTPS server on port 443. It returns the server's address, and a file with
// the authority that signed the server's certificate.
func serveHTTPS(t *testing.T, handler http.HandlerFunc) (address, roots string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "roots of a test"}, NotAfter: time.Now().Add(time.Hour),
		NotBefore: time.Now().Add(-time.Hour), IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{secretHost, otherHost},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	roots = filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	address = hostAddress(t)
	l, err := net.Listen("tcp", net.JoinHostPort(address, "443"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{
		Handler:   handler,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
	}
	go srv.ServeTLS(l, "", "")
	t.Cleanup(func() { srv.Close() })
	return address, roots
}

// serveNames starts a DNS server that resolves every name to the given address. It returns the
// address of the DNS server.
func serveNames(t *testing.T, address string) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		p := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(p)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(p[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Header.Response, m.Header.RecursionAvailable, m.Additionals = true, true, nil
			if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60},
					Body:   &dnsmessage.AResource{A: [4]byte(net.ParseIP(address).To4())},
				}}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return conn.LocalAddr().String()
}
