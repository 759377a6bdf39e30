package daemon

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/daemon/auth"
)

// authority makes certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.cert, a.key, a.pem, _ = a.make(&x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign})
	return a
}

// make fills in a certificate and signs it. If the authority has no certificate yet, the new
// certificate is self-signed.
func (a *authority) make(c *x509.Certificate) (_ *x509.Certificate, key *ecdsa.PrivateKey, certPEM, keyPEM []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, _ = rand.Int(rand.Reader, big.NewInt(1<<62))
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return made, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// server makes a certificate for a server, and user makes one for a client.
func (a *authority) server() (cert, key []byte) {
	_, _, cert, key = a.make(&x509.Certificate{Subject: pkix.Name{CommonName: "daemon"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	return cert, key
}

func (a *authority) user(name string) (cert, key []byte) {
	_, _, cert, key = a.make(&x509.Certificate{Subject: pkix.Name{CommonName: name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return cert, key
}

func put(t *testing.T, path string, p []byte) string {
	t.Helper()
	if err := os.WriteFile(path, p, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The TCP address speaks TLS 1.2 and newer, with the certificate that is in the file when the
// connection begins. It accepts only clients whose certificates the configured authority has
// signed.
func TestTLS(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	cert, key := ours.server()
	files := TLS{Cert: put(t, filepath.Join(dir, "cert"), cert), Key: put(t, filepath.Join(dir, "key"), key),
		ClientCA: put(t, filepath.Join(dir, "ca"), ours.pem)}
	cfg := &Config{Bind: "127.0.0.1:0", TLS: files, Log: slog.New(slog.DiscardHandler)}
	guard, err := openGuard(cfg)
	if err != nil {
		t.Fatal(err)
	}
	listeners, err := listen(cfg, guard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := guard.Identify(r)
		if err != nil || p.Who != "cert:ann" || p.Scope != auth.Admin {
			t.Errorf("%+v, %v", p, err)
		}
		w.Write([]byte(`{"ok": true}`))
	})
	go func() { done <- serve(ctx, cfg.Log, handler, listeners, 10) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	address := listeners[0].Addr().String()
	ask := func(options ...client.Option) error {
		t.Helper()
		c, err := client.New("https://"+address, "", options...)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.Healthy(t.Context())
	}
	annCert, annKey := ours.user("ann")
	ann := client.WithCertificate(annCert, annKey)
	evilCert, evilKey := others.user("ann")
	if err := ask(client.WithCA(ours.pem), ann); err != nil {
		t.Errorf("with everything right: %v", err)
	}
	for name, options := range map[string][]client.Option{
		"no certificate":      {client.WithCA(ours.pem)},
		"another authority's": {client.WithCA(ours.pem), client.WithCertificate(evilCert, evilKey)},
		"a foreign daemon":    {client.WithCA(others.pem), ann},
		"the host's roots":    {ann},
	} {
		if err := ask(options...); err == nil {
			t.Errorf("%s: let through", name)
		}
	}
	pair, err := tls.X509KeyPair(annCert, annKey)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ours.pem)
	old := &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11, RootCAs: roots,
		Certificates: []tls.Certificate{pair}}
	if c, err := tls.Dial("tcp", address, old); err == nil {
		c.Close()
		t.Error("TLS 1.1 is spoken")
	}
	two := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}},
		ForceAttemptHTTP2: true}
	resp, err := (&http.Client{Transport: two}).Get("https://" + address)
	if err != nil || resp.ProtoMajor != 2 {
		t.Errorf("HTTP/2: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
	two.CloseIdleConnections()

	// An invalid file changes nothing. A new certificate is used from the next connection on.
	put(t, files.Cert, []byte("nonsense"))
	if err := ask(client.WithCA(ours.pem), ann); err != nil {
		t.Errorf("after a broken change: %v", err)
	}
	cert, key = others.server()
	put(t, files.Cert, cert)
	put(t, files.Key, key)
	if err := ask(client.WithCA(others.pem), ann); err != nil {
		t.Errorf("after the change: %v", err)
	}
	if err := ask(client.WithCA(ours.pem), ann); err == nil {
		t.Error("the certificate of before is still shown")
	}
}

func TestTLSFilesAreChecked(t *testing.T) {
	cert, key := newAuthority(t).server()
	dir := t.TempDir()
	good := TLS{Cert: put(t, filepath.Join(dir, "cert"), cert), Key: put(t, filepath.Join(dir, "key"), key)}
	log := slog.New(slog.DiscardHandler)
	if _, err := serverTLS(good, log); err != nil {
		t.Fatal(err)
	}
	for want, files := range map[string]TLS{
		"no such file":          {Cert: good.Cert, Key: good.Key + "x"},
		"--tls-key":             {Cert: good.Cert, Key: good.Cert},
		"no certificate in PEM": {Cert: good.Cert, Key: good.Key, ClientCA: good.Key},
	} {
		if _, err := serverTLS(files, log); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", files, err, want)
		}
	}
	if err := os.Chmod(good.Key, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := serverTLS(good, log); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key for everybody: %v", err)
	}
	for _, c := range []struct {
		files TLS
		bind  string
		ok    bool
	}{
		{TLS{}, "", true}, {TLS{Cert: "c", Key: "k"}, "127.0.0.1:1", true}, {TLS{Cert: "c", Key: "k"}, "", false},
		{TLS{Cert: "c"}, "127.0.0.1:1", false}, {TLS{ClientCA: "c"}, "127.0.0.1:1", false},
	} {
		if err := c.files.check(c.bind); (err == nil) != c.ok {
			t.Errorf("%+v at %q: %v", c.files, c.bind, err)
		}
	}
}

// A client that speaks HTTP to the TLS address is redirected to https://, and no handler sees its
// request.
func TestPlainHTTPIsRedirected(t *testing.T) {
	ours := newAuthority(t)
	dir := t.TempDir()
	cert, key := ours.server()
	var logged bytes.Buffer
	cfg := &Config{Bind: "127.0.0.1:0", Log: slog.New(slog.NewTextHandler(&logged, nil)),
		TLS: TLS{Cert: put(t, filepath.Join(dir, "cert"), cert), Key: put(t, filepath.Join(dir, "key"), key)}}
	listeners, err := listen(cfg, &auth.Guard{Tokens: nil, Certs: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil {
			t.Errorf("served in clear text: %s", r.URL)
		}
	})
	go func() { done <- serve(ctx, cfg.Log, handler, listeners, 10) }()
	address := listeners[0].Addr().String()
	stay := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, body := range []string{"", strings.Repeat("x", 300<<10)} {
		req, err := http.NewRequest("POST", "http://"+address+"/v1/forks?a=b%20c", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer hush-1234")
		resp, err := stay.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if want := "https://" + address + "/v1/forks?a=b%20c"; resp.StatusCode != 308 || resp.Header.Get("Location") != want {
			t.Errorf("%d to %q, want 308 to %q", resp.StatusCode, resp.Header.Get("Location"), want)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ours.pem)
	secure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	if resp, err := secure.Post("http://"+address+"/v1/forks", "application/json", strings.NewReader("{}")); err != nil ||
		resp.StatusCode != 200 {
		t.Errorf("a client that follows: %+v, %v", resp, err)
	}
	secure.CloseIdleConnections()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if text := logged.String(); strings.Count(text, "sent unencrypted") != 1 || strings.Contains(text, "hush") {
		t.Errorf("logged %s", text)
	}
}
