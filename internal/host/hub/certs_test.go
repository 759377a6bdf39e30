package hub

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ociregistry "github.com/google/go-containerregistry/pkg/registry"
)

// clientCert writes a new certificate and its key, and returns the certificate.
func clientCert(t *testing.T, cert, key string) *x509.Certificate {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	p, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, cert, "CERTIFICATE", der)
	writePEM(t, key, "PRIVATE KEY", p)
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c
}

func writePEM(t *testing.T, path, kind string, p []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: p}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The authority and the client's certificate for a registry come from the directory with the
// registry's name. They are used for this registry only.
func TestRegistryCertificates(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	server := httptest.NewUnstartedServer(ociregistry.New(ociregistry.Logger(log.New(io.Discard, "", 0))))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	clients := x509.NewCertPool()
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	server.StartTLS()
	defer server.Close()
	a := newHost(t).hasty()
	a.cfg.Certs, a.tries = t.TempDir(), 1
	a.make(t, "parent", "", 2, 'p')
	name := strings.TrimPrefix(server.URL, "https://")
	push := func() error {
		_, err := a.Push(t.Context(), "ann", "parent", remoteOf(t, name+"/team/py:1"), false, ignore)
		return err
	}
	other, own := filepath.Join(a.cfg.Certs, "127.0.0.1:1"), filepath.Join(a.cfg.Certs, name)
	for _, dir := range []string{other, own} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	writePEM(t, filepath.Join(other, "ca.crt"), "CERTIFICATE", server.Certificate().Raw)
	if push() == nil {
		t.Error("the authority of another registry was used")
	}
	writePEM(t, filepath.Join(own, "ca.crt"), "CERTIFICATE", server.Certificate().Raw)
	if push() == nil {
		t.Error("a push without a certificate has succeeded")
	}
	clients.AddCert(clientCert(t, filepath.Join(own, "client.cert"), filepath.Join(own, "client.key")))
	if err := push(); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(own, "ca.crt"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := push(); err == nil || !strings.Contains(err.Error(), "ca.crt has no certificate in PEM") {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(own, "client.key")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(own, "ca.crt")); err != nil {
		t.Fatal(err)
	}
	if err := push(); err == nil || !strings.Contains(err.Error(), "client.key") {
		t.Error(err)
	}
}

// named is a transport that answers with its name.
type named string

func (n named) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Name": {string(n)}},
		Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

// If the registry redirects a request to another server, the request does not use the registry's
// certificates.
func TestCertificatesAreForOneServer(t *testing.T) {
	w := wire{base: named("base"), own: named("own"), home: "host-a:8889", stall: time.Minute}
	for url, want := range map[string]string{"https://host-a:8889/v2/": "own", "https://host-a/v2/": "base",
		"https://host-b:8889/v2/": "base"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := w.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get("Name"); got != want {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
	}
}
