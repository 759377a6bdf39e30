package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// Option changes how a Client connects and how it handles failures.
type Option func(*settings) error

type settings struct {
	tls     *tls.Config // used for https addresses
	retries int
	private bool // check who may have created the unix socket; see WithPrivateSocket
}

// WithPrivateSocket refuses a unix socket that a user other than root and the caller may have
// created. The socket's directory must belong to root or the caller, and must not be writable by
// other users. The same applies to the directory above the socket's directory, if its name begins
// with forkd-run-. Default sets this option for the daemon's default socket.
func WithPrivateSocket() Option {
	return func(s *settings) error {
		s.private = true
		return nil
	}
}

// WithCA trusts only the certificate authorities in pem.
func WithCA(pem []byte) Option {
	return func(s *settings) error {
		s.tls.RootCAs = x509.NewCertPool()
		if !s.tls.RootCAs.AppendCertsFromPEM(pem) {
			return errors.New("authority of the daemon: no certificate in PEM")
		}
		return nil
	}
}

// WithCertificate sets the client certificate that is shown to the daemon. Both arguments are PEM.
func WithCertificate(cert, key []byte) Option {
	return func(s *settings) error {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return fmt.Errorf("certificate of the client: %w", err)
		}
		s.tls.Certificates = []tls.Certificate{pair}
		return nil
	}
}
