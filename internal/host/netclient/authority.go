package netclient

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"time"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// authority is by whom guests that have secrets know forkd-net as their server: a certificate of
// this daemon's own, and its key. Both are in one file, which nobody else can read.
type authority struct {
	netproto.Trust
	pem []byte // the certificate
}

// Kinds of PEM blocks in the file.
const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY" // PKCS #8
)

// openAuthority reads the authority at path, or makes one.
func openAuthority(path string) (*authority, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if text, err = newAuthority(); err == nil {
			err = atomicfile.WriteDurable(path, text, 0o600)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("authority for secrets: %w", err)
	}
	a := &authority{}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case certificateBlock:
			a.Certificate, a.pem = block.Bytes, pem.EncodeToMemory(block)
		case keyBlock:
			a.Key = netproto.Hidden(block.Bytes)
		}
	}
	if a.Certificate == nil || a.Key == "" {
		return nil, fmt.Errorf("authority for secrets: %s is damaged: remove it, start the daemon again, and give sandboxes their secrets again", path)
	}
	return a, nil
}

// authorityYears is how long an authority is valid. There is no other way to replace one than to
// remove its file.
const authorityYears = 10

// newAuthority makes a file.
func newAuthority() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "forkd " + serial.Text(16)[:8], Organization: []string{"forkd"}},
		NotBefore: now.AddDate(0, 0, -1), NotAfter: now.AddDate(authorityYears, 0, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: secret})...), nil
}

// rootsEnv is where programs are told of other roots than the host's, as OpenSSL and Go have it.
const rootsEnv = "SSL_CERT_FILE"

// rootFiles are where distributions keep the roots that their programs trust, as in crypto/x509.
var rootFiles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Arch
	"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora
	"/etc/ssl/ca-bundle.pem",                            // openSUSE
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // RHEL
	"/etc/ssl/cert.pem",                                 // Alpine
}

// openRoots opens the file of the roots by which this host knows servers.
func openRoots() (*os.File, error) {
	if name := os.Getenv(rootsEnv); name != "" {
		return os.Open(name)
	}
	for _, name := range rootFiles {
		if f, err := os.Open(name); err == nil {
			return f, nil
		}
	}
	return nil, errors.New("this host has no roots of certificates: install ca-certificates, or set " + rootsEnv)
}

// Authority returns the certificate, in PEM, that the guest of a sandbox with secrets has to trust.
// It is made at the first call.
func (c *Client) Authority() ([]byte, error) {
	if c == nil {
		return nil, ErrDown
	}
	a, err := c.authority()
	if err != nil {
		return nil, err
	}
	return a.pem, nil
}

// trustLocked tells a forkd-net by whom it is known and by whom it knows servers, before the first
// secret. Without that it lets nobody through to the host of one.
func (c *Client) trustLocked(n *conn) {
	if n.trusted {
		return
	}
	n.trusted = true
	a, err := c.authority()
	if err == nil {
		var roots *os.File
		if roots, err = openRoots(); err == nil {
			n.post(netproto.KindTrust, &a.Trust, roots, c.complainTrust)
		}
	}
	if err != nil {
		c.complainTrust(nil, err)
	}
}

func (c *Client) complainTrust(_ []byte, err error) {
	if err != nil && !errors.Is(err, ErrDown) {
		c.cfg.Log.Error("secrets cannot be added to requests", "error", err)
	}
}
