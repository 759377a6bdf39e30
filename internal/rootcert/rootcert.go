// Package rootcert makes the parts of a certificate authority of one's own: a certificate that
// signs itself, serial numbers, and PEM. It also finds those that a host trusts. For what an
// authority is good, where it is kept and whom it signs for is its callers' business.
package rootcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"os"
	"time"
)

// Years is how long an authority is valid.
const Years = 10

// Types of PEM blocks (RFC 7468).
const (
	CertificateBlock = "CERTIFICATE"
	KeyBlock         = "PRIVATE KEY" // PKCS #8
)

// New makes an authority, which signs itself and may sign no other authorities. What tmpl says of
// its name and of the names that it may sign for is kept; the rest is filled in.
func New(tmpl *x509.Certificate, now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := NewKey()
	if err != nil {
		return nil, nil, err
	}
	if tmpl.SerialNumber == nil {
		tmpl.SerialNumber = Serial()
	}
	tmpl.NotBefore, tmpl.NotAfter = now.AddDate(0, 0, -1), now.AddDate(Years, 0, 0)
	tmpl.IsCA, tmpl.BasicConstraintsValid, tmpl.MaxPathLenZero = true, true, true
	tmpl.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}

// NewKey makes a key for a certificate.
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// Serial is a new serial number: 127 random bits, for it has to be positive and of at most 20 bytes
// (RFC 5280, section 4.1.2.2).
func Serial() *big.Int {
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) // crypto/rand never fails
	return n
}

// PEM is a certificate, given as DER, in PEM.
func PEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: CertificateBlock, Bytes: der})
}

// KeyPEM is a key in PEM.
func KeyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: KeyBlock, Bytes: der}), err
}

// OpenRoots opens the file of the authorities that programs of this host trust. The error is
// fs.ErrNotExist where there is none.
func OpenRoots() (*os.File, error) {
	for _, name := range []string{ // as in crypto/x509
		"/etc/ssl/certs/ca-certificates.crt",                // Debian, Arch
		"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora
		"/etc/ssl/ca-bundle.pem",                            // openSUSE
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // RHEL
		"/etc/ssl/cert.pem",                                 // Alpine
	} {
		f, err := os.Open(name)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
	}
	return nil, fs.ErrNotExist
}
