package cli

import (
	"cmp"
	"fmt"
	"os"

	"github.com/forkd/forkd/client"
)

// Environment variables with the names of PEM files, for daemons at https addresses.
const (
	caEnv   = "FORKD_CA"
	certEnv = "FORKD_CERT"
	keyEnv  = "FORKD_KEY"
)

// tlsOptions returns the client options for TLS. The parameter ca is a file with the authorities
// against which the daemon's certificate is checked. If ca is empty, tlsOptions uses $FORKD_CA, or
// else the authorities of the host. The user's own certificate and key are in the files that
// $FORKD_CERT and $FORKD_KEY name.
func tlsOptions(ca string) (options []client.Option, err error) {
	if ca = cmp.Or(ca, os.Getenv(caEnv)); ca != "" {
		p, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w", err)
		}
		options = append(options, client.WithCA(p))
	}
	cert, key := os.Getenv(certEnv), os.Getenv(keyEnv)
	if (cert == "") != (key == "") {
		return nil, fmt.Errorf("%s and %s: want both or neither", certEnv, keyEnv)
	}
	if cert != "" {
		c, err := os.ReadFile(cert)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", certEnv, err)
		}
		k, err := os.ReadFile(key)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", keyEnv, err)
		}
		options = append(options, client.WithCertificate(c, k))
	}
	return options, nil
}
