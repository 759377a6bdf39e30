package inject

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// Trust holds the CA that signs our certificates for guests, and the roots that we verify servers
// against. It is immutable.
type Trust struct {
	authority *x509.Certificate
	key       crypto.Signer
	own       *ecdsa.PrivateKey // key of all certificates that the authority signs
	roots     *x509.CertPool
}

// NewTrust returns a Trust. The parameters certificate (DER) and key (PKCS #8) belong to the CA.
// The roots are PEM certificates. Without roots, the Trust accepts no server.
func NewTrust(certificate, key, roots []byte) (*Trust, error) {
	authority, err := x509.ParseCertificate(certificate)
	if err != nil {
		return nil, fmt.Errorf("certificate of the authority: %w", err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(key)
	if err != nil {
		return nil, errors.New("key of the authority: it cannot be read") // do not wrap the error, which could quote the key
	}
	signer, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, errors.New("key of the authority: it cannot sign")
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool() // an empty pool trusts no server; nil would use the files of this host
	pool.AppendCertsFromPEM(roots)
	return &Trust{authority, signer, own, pool}, nil
}

// Validity of a certificate. There is a new certificate for each connection, so the time can be
// short. The guest's clock may be wrong by some hours.
const (
	validBefore = 24 * time.Hour
	validAfter  = 7 * 24 * time.Hour
)

// certificate returns a new certificate for the given host, with which we take the server's place.
func (t *Trust) certificate(host string) (*tls.Certificate, error) {
	now := time.Now()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"forkd"}}, DNSNames: []string{host},
		NotBefore: now.Add(-validBefore), NotAfter: now.Add(validAfter),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, t.authority, &t.own.PublicKey, t.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der, t.authority.Raw}, PrivateKey: t.own}, nil
}

// guestConfig returns the TLS configuration for connections of a guest to the given host.
func (t *Trust) guestConfig(host string) (*tls.Config, error) {
	c, err := t.certificate(host)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{*c},
		SessionTicketsDisabled: true, // a later connection cannot resume a session
	}, nil
}

// serverConfig returns the TLS configuration for connections to the given host.
func (t *Trust) serverConfig(host string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, ServerName: host, RootCAs: t.roots}
}
