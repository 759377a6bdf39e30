package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// Option changes how a Client connects to https addresses.
type Option func(*tls.Config) error

// WithCA trusts the authorities in pem, and no others.
func WithCA(pem []byte) Option {
	return func(c *tls.Config) error {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return errors.New("authority of the daemon: no certificate in PEM")
		}
		return nil
	}
}

// WithCertificate shows the daemon a certificate of the client's own; both are in PEM.
func WithCertificate(cert, key []byte) Option {
	return func(c *tls.Config) error {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return fmt.Errorf("certificate of the client: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
		return nil
	}
}
