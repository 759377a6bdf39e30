package netclient

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/netproto"
	"github.com/forkd/forkd/internal/rootcert"
)

// The authority is made when it is first needed, in a file that only the daemon's user can read.
// Later calls return the same authority. Guests never receive the authority's key.
func TestAuthority(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ca.pem")
	first, err := openAuthority(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	again, err := openAuthority(path)
	if err != nil || !bytes.Equal(first.pem, again.pem) || first.Key != again.Key || first.Key == "" {
		t.Errorf("it is another one when it is read again: %v", err)
	}
	block, rest := pem.Decode(first.pem)
	if block == nil || block.Type != rootcert.CertificateBlock || len(rest) != 0 {
		t.Fatalf("guests get %q", first.pem)
	}
	if c, err := x509.ParseCertificate(block.Bytes); err != nil || !c.IsCA || !c.MaxPathLenZero {
		t.Errorf("%+v, %v", c, err)
	}
	if err := os.WriteFile(path, first.pem, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openAuthority(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a file without a key: %v", err)
	}
}

// The authority is sent to forkd-net before the first secret. Without secrets it is never sent.
func TestTrustComesBeforeSecrets(t *testing.T) {
	cfg := newConfig(t)
	cfg.Authority = filepath.Join(t.TempDir(), "ca.pem")
	roots := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(roots, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(rootsEnv, roots)
	c := open(t, cfg)
	l, g := join(t, c, "sb-1", netproto.Public())
	g.say(t, "x", "public x")
	if _, err := os.Stat(cfg.Authority); err == nil {
		t.Error("an authority was made that nobody needs")
	}
	with := Setting{Policy: netproto.Public(), Secrets: []netproto.Secret{{Host: "a.b", Header: "X", Value: "s3cr3t"}}}
	if err := l.Set(context.Background(), with); err != nil {
		t.Fatal(err)
	}
	g.say(t, "y", "public s3cr3t y")
	if _, err := c.Authority(); err != nil {
		t.Error(err)
	}
}

// If the authority cannot be made or the roots cannot be opened, for example because the disk is
// full, the next setting tries again, and sends the authority to the same forkd-net.
func TestTrustIsTriedAgain(t *testing.T) {
	cfg := newConfig(t)
	state := filepath.Join(t.TempDir(), "state")
	cfg.Authority = filepath.Join(state, "ca.pem")
	roots := filepath.Join(t.TempDir(), "roots.pem")
	t.Setenv(rootsEnv, roots)
	c := open(t, cfg)
	l, g := join(t, c, "sb-1", netproto.Public())
	g.say(t, "x", "public x") // forkd-net is running
	with := Setting{Policy: netproto.Public(), Secrets: []netproto.Secret{{Host: "a.b", Header: "X", Value: "s3cr3t"}}}
	isTrusted := func() bool {
		if err := l.Set(t.Context(), with); err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.conn.trusted
	}
	if _, err := c.Authority(); err == nil || isTrusted() {
		t.Error("there is an authority without a directory for it:", err)
	}
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if isTrusted() {
		t.Error("forkd-net is trusted without roots")
	}
	first, err := c.Authority()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(roots, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !isTrusted() {
		t.Error("the authority is not sent when it is there")
	}
	if err := os.Remove(cfg.Authority); err != nil {
		t.Fatal(err)
	}
	if again, err := c.Authority(); err != nil || !bytes.Equal(first, again) {
		t.Error("the authority changes while the daemon runs:", err)
	}
}
