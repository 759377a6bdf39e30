// Package trust adds an authority for TLS certificates to the authorities that the programs of a
// guest trust.
//
// It adds the certificate to the bundle of the guest's distribution, which curl, git, wget and apt
// use. Libraries with their own root certificates (Go and OpenSSL, Python's requests and pip,
// Node.js) find the bundle through environment variables. The package does not change stores in
// other formats, such as Java's and a browser's, and does not affect running programs. It checks
// only the form of the certificate, and never removes certificates.
package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// bundles are the paths at which distributions keep their trusted authorities in one file. If none
// exists, the first is created.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt", // Debian, Alpine, Arch
	"/etc/pki/tls/certs/ca-bundle.crt",   // Fedora
	"/etc/ssl/ca-bundle.pem",             // openSUSE
	"/etc/ssl/cert.pem",
}

// source is the file that Debian's and Alpine's update-ca-certificates includes when it regenerates
// the bundle.
const source = "/usr/local/share/ca-certificates/forkd.crt"

// Install adds a PEM certificate, and returns the environment variables that programs need to find
// the certificate. Adding the same certificate again changes nothing.
func Install(certificate string) (env map[string]string, err error) {
	return install("/", certificate)
}

// install is Install for the file system at root.
func install(root, certificate string) (map[string]string, error) {
	block, rest := pem.Decode([]byte(certificate))
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("trust: want one certificate in PEM")
	}
	if _, err := x509.ParseCertificate(block.Bytes); err != nil {
		return nil, fmt.Errorf("trust: %w", err)
	}
	text := pem.EncodeToMemory(block)
	bundle := bundles[0]
	for _, b := range bundles {
		if _, err := os.Stat(filepath.Join(root, b)); err == nil {
			bundle = b
			break
		}
	}
	if err := errors.Join(add(filepath.Join(root, bundle), text), write(filepath.Join(root, source), text)); err != nil {
		return nil, fmt.Errorf("trust: %w", err)
	}
	return map[string]string{
		"SSL_CERT_FILE": bundle, "REQUESTS_CA_BUNDLE": bundle, // replaces the roots of OpenSSL, Go and Python
		"NODE_EXTRA_CA_CERTS": source, // adds to the roots of Node.js
	}, nil
}

// add appends a certificate to a bundle. If the bundle already contains the certificate, add does
// nothing.
func add(bundle string, certificate []byte) error {
	have, err := os.ReadFile(bundle)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if bytes.Contains(have, certificate) {
		return nil
	}
	if len(have) > 0 && have[len(have)-1] != '\n' {
		have = append(have, '\n')
	}
	return write(bundle, append(have, certificate...))
}

// write replaces a file atomically, because programs may be reading it.
func write(path string, text []byte) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temporary := path + ".forkd"
	if err := os.WriteFile(temporary, text, 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
