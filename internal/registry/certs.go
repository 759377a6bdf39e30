package registry

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// CertsDir is where Docker and Podman look for certificates of registries. For the registry HOST, the files
// HOST/*.crt are authorities of the registry's certificate. The files HOST/*.cert are certificates of this client, with
// their keys in HOST/*.key.
const CertsDir = "/etc/docker/certs.d"

// Certs returns the TLS configuration for a registry, from a directory with the layout of CertsDir.
// If the directory has no certificates for the registry, the result is nil. The parameter host has
// the form that Name returns.
func Certs(dir, host string) (*tls.Config, error) {
	if dir == "" || host == "." || !filepath.IsLocal(host) || filepath.Base(host) != host {
		return nil, nil
	}
	files, err := os.ReadDir(filepath.Join(dir, host))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	for _, f := range files {
		path := filepath.Join(dir, host, f.Name())
		switch filepath.Ext(f.Name()) {
		case ".crt":
			if c.RootCAs == nil {
				if c.RootCAs, err = x509.SystemCertPool(); err != nil {
					return nil, err
				}
			}
			p, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			if !c.RootCAs.AppendCertsFromPEM(p) {
				return nil, fmt.Errorf("%s has no certificate in PEM", path)
			}
		case ".cert":
			pair, err := tls.LoadX509KeyPair(path, strings.TrimSuffix(path, ".cert")+".key")
			if err != nil {
				return nil, fmt.Errorf("%s, with the key beside it: %w", path, err)
			}
			c.Certificates = append(c.Certificates, pair)
		}
	}
	return c, nil
}
