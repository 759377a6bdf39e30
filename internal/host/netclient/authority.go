package netclient

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/proto/netproto"
	"github.com/forkd/forkd/internal/rootcert"
)

// authority is by whom guests that have secrets know forkd-net as their server: a certificate of
// this daemon's own, and its key. Both are in one file, which nobody else can read.
type authority struct {
	netproto.Trust
	pem []byte // the certificate
}

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
		case rootcert.CertificateBlock:
			a.Certificate, a.pem = block.Bytes, pem.EncodeToMemory(block)
		case rootcert.KeyBlock:
			a.Key = netproto.Hidden(block.Bytes)
		}
	}
	if a.Certificate == nil || a.Key == "" {
		return nil, fmt.Errorf("authority for secrets: %s is damaged: remove it, start the daemon again, and give sandboxes their secrets again", path)
	}
	return a, nil
}

// newAuthority makes a file. There is no other way to replace an authority than to remove it.
func newAuthority() ([]byte, error) {
	serial := rootcert.Serial()
	c, key, err := rootcert.New(&x509.Certificate{SerialNumber: serial,
		Subject: pkix.Name{CommonName: "forkd " + serial.Text(16)[:8], Organization: []string{"forkd"}}}, time.Now())
	if err != nil {
		return nil, err
	}
	secret, err := rootcert.KeyPEM(key)
	return append(rootcert.PEM(c.Raw), secret...), err
}

// rootsEnv is where programs are told of other roots than the host's, as OpenSSL and Go have it.
const rootsEnv = "SSL_CERT_FILE"

// openRoots opens the file of the roots by which this host knows servers.
func openRoots() (*os.File, error) {
	if name := os.Getenv(rootsEnv); name != "" {
		return os.Open(name)
	}
	f, err := rootcert.OpenRoots()
	if errors.Is(err, os.ErrNotExist) {
		return nil, errors.New("this host has no roots of certificates: install ca-certificates, or set " + rootsEnv)
	}
	return f, err
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
