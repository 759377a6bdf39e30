package netclient

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/proto/netproto"
	"github.com/forkd/forkd/internal/rootcert"
)

// authority is a CA certificate of this daemon with its key. With them, forkd-net signs
// certificates for guests whose sandboxes have secrets. Certificate and key are in one file, which
// only the daemon's user can read.
type authority struct {
	netproto.Trust
	pem []byte // the certificate as PEM
}

// keptAuthority keeps the authority from its first use on. It does not keep an error, such as a
// full disk: the next call tries again.
type keptAuthority struct {
	mu sync.Mutex
	// +checklocks:mu
	kept *authority
}

// open returns the authority of the file at path, as openAuthority does.
func (k *keptAuthority) open(path string) (*authority, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept != nil {
		return k.kept, nil
	}
	a, err := openAuthority(path)
	if err == nil {
		k.kept = a
	}
	return a, err
}

// openAuthority reads the authority from the file at path. If there is none, it makes one.
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
		return nil, fmt.Errorf("authority for secrets: %s is damaged: remove it, and give sandboxes their secrets again",
			path)
	}
	return a, nil
}

// newAuthority returns the content of a file with a new authority. To replace an authority, remove
// its file.
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

// rootsEnv is an environment variable with the path of a file of root certificates. This file
// replaces the host's file. OpenSSL and Go also use this variable.
const rootsEnv = "SSL_CERT_FILE"

// openRoots opens the file of root certificates that this host trusts.
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

// Authority returns the PEM certificate that guests of sandboxes with secrets must trust. The first
// call makes the authority.
func (c *Client) Authority() ([]byte, error) {
	if c == nil {
		return nil, ErrDown
	}
	a, err := c.authority.open(c.cfg.Authority)
	if err != nil {
		return nil, err
	}
	return a.pem, nil
}

// Trust tells the guest that dial reaches to trust forkd-net's CA, if its sandbox has secrets or a
// hold.
func (c *Client) Trust(ctx context.Context, setting Setting, dial agentclient.DialFunc) error {
	if c == nil || !setting.EndsTLS() { // without a network, there is no CA
		return nil
	}
	certificate, err := c.Authority()
	if err != nil {
		return err
	}
	return agentclient.New(dial).Trust(ctx, certificate)
}

// trustLocked sends the authority and the root certificates to forkd-net, once, before the first
// secret or hold. Without them forkd-net refuses connections to hosts of secrets and to held hosts.
// If they cannot be opened, the client tries again at the next setting with a secret or hold.
func (c *Client) trustLocked(n *conn) {
	if n.trusted {
		return
	}
	a, err := c.authority.open(c.cfg.Authority)
	if err == nil {
		var roots *os.File
		if roots, err = openRoots(); err == nil {
			n.post(netproto.KindTrust, &a.Trust, roots, c.complainTrust)
			n.trusted = true
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
