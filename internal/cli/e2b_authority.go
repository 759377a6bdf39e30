package cli

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/rootcert"
)

// certificateDays is how long the certificates of setup are valid. Apple's systems accept at most
// 398 days.
const certificateDays = 397

// authority signs certificates for one domain and for loopback. Even clients that trust the
// authority accept no certificate of the authority for other names.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// loopback are the addresses in the daemon's certificate in addition to the daemon's domain. The
// forkd command connects to them.
var loopback = []net.IPNet{
	{IP: net.IPv4(127, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)},
	{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)},
}

func newAuthority(domain string, now time.Time) (*authority, error) {
	c := &x509.Certificate{Subject: pkix.Name{CommonName: "forkd, for " + domain},
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: []string{domain, "localhost"}}
	for i := range loopback {
		c.PermittedIPRanges = append(c.PermittedIPRanges, &loopback[i])
	}
	cert, key, err := rootcert.New(c, now)
	return &authority{cert, key}, err
}

// sign makes a certificate, with its key, for the domain and its direct subdomains.
func (a *authority) sign(domain string, now time.Time) (cert, key []byte, ends time.Time, err error) {
	k, err := rootcert.NewKey()
	if err != nil {
		return nil, nil, ends, err
	}
	ends = now.AddDate(0, 0, certificateDays)
	c := &x509.Certificate{
		SerialNumber: rootcert.Serial(), Subject: pkix.Name{CommonName: domain},
		NotBefore: now.AddDate(0, 0, -1), NotAfter: ends,
		DNSNames: []string{domain, "*." + domain, "localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1),
			net.IPv6loopback},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &k.PublicKey, a.key)
	if err != nil {
		return nil, nil, ends, err
	}
	key, err = rootcert.KeyPEM(k)
	return rootcert.PEM(der), key, ends, err
}

// Files that the command setup writes to its directory.
const (
	caFile     = "ca.pem"
	caKeyFile  = "ca.key"
	certFile   = "cert.pem"
	keyFile    = "key.pem"
	bundleFile = "bundle.pem" // the root certificates of the host and of the authority
	domainFile = "domain"
)

// openAuthority returns the authority in dir, if it is for the domain and will expire later than a
// new certificate. If there is no such authority, openAuthority makes a new one and writes it to
// dir.
func openAuthority(dir, domain string, now time.Time) (a *authority, made bool, err error) {
	a, err = readAuthority(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, false, fmt.Errorf("%w: remove %s, and run this again", err, dir)
	case slices.Contains(a.cert.PermittedDNSDomains, domain) && a.cert.NotAfter.After(now.AddDate(0, 0, certificateDays)):
		return a, false, nil
	}
	if a, err = newAuthority(domain, now); err != nil {
		return nil, false, err
	}
	key, err := rootcert.KeyPEM(a.key)
	if err != nil {
		return nil, false, err
	}
	// Write the key first, because a certificate without its key is an error.
	if err := atomicfile.Write(filepath.Join(dir, caKeyFile), key, 0o600); err != nil {
		return nil, false, err
	}
	return a, true, atomicfile.Write(filepath.Join(dir, caFile), rootcert.PEM(a.cert.Raw), 0o644)
}

func readAuthority(dir string) (*authority, error) {
	text, err := os.ReadFile(filepath.Join(dir, caFile))
	if err != nil {
		return nil, err
	}
	secret, err := os.ReadFile(filepath.Join(dir, caKeyFile))
	if err != nil {
		// Use %v instead of %w, because a missing key must not count as a missing authority.
		return nil, fmt.Errorf("read the authority's key: %v", err)
	}
	damaged := fmt.Errorf("%s and %s are damaged", caFile, caKeyFile)
	block, _ := pem.Decode(text)
	keyBlock, _ := pem.Decode(secret)
	if block == nil || keyBlock == nil {
		return nil, damaged
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, damaged
	}
	parsed, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	key, ok := parsed.(*ecdsa.PrivateKey)
	if err != nil || !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, damaged
	}
	return &authority{cert, key}, nil
}

// hostRoots returns the root certificates of this host; empty if it has none.
func hostRoots() ([]byte, error) {
	f, err := rootcert.OpenRoots()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}
