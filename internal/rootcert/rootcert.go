// Package rootcert makes the parts of a private certificate authority: a self-signed certificate,
// keys, serial numbers and PEM. It also finds the authorities that a host trusts. Its callers
// decide which certificates an authority signs, and where the authority is stored.
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

// Years is the validity of an authority.
const Years = 10

// Types of PEM blocks (RFC 7468).
const (
	CertificateBlock = "CERTIFICATE"
	KeyBlock         = "PRIVATE KEY" // PKCS #8
)

// New makes a self-signed authority that is not allowed to sign other authorities. It copies the
// name and the name constraints from tmpl, and sets all other fields.
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

// Serial returns a new serial number of 127 random bits. RFC 5280 (section 4.1.2.2) requires a
// positive number of at most 20 bytes.
func Serial() *big.Int {
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) // crypto/rand never fails
	return n
}

// PEM encodes a certificate, given as DER.
func PEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: CertificateBlock, Bytes: der})
}

// KeyPEM encodes a key.
func KeyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: KeyBlock, Bytes: der}), err
}

// OpenRoots opens the file with the authorities that programs on this host trust. If the host has
// no such file, it returns fs.ErrNotExist.
func OpenRoots() (*os.File, error) {
	for _, name := range []string{ // the same files as in crypto/x509
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
