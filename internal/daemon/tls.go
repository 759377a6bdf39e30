package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/forkd/forkd/internal/daemon/plainhttp"
	"github.com/forkd/forkd/internal/daemon/stamp"
)

// TLS configures the TCP address. The zero TLS means no TLS.
type TLS struct {
	Cert, Key string // PEM files
	ClientCA  string // PEM file with the authorities of client certificates; empty: clients need no certificates
}

func (t *TLS) check(bind string) error {
	switch {
	case *t == TLS{}:
		return nil
	case t.Cert == "" || t.Key == "":
		return errors.New("--tls-cert and --tls-key: want both, and with --tls-client-ca too")
	case bind == "":
		return errors.New("--tls-cert: only with --bind: the unix socket stays on this host")
	}
	return nil
}

// certificates holds the daemon's certificates. A change of the files applies from the next
// connection on. If the files become unreadable or invalid, the error is logged, and the previous
// certificates stay in use.
type certificates struct {
	files TLS
	log   *slog.Logger

	mu       sync.Mutex
	config   *tls.Config
	seen     [3]stamp.Stamp
	reported string // the last error that was logged
}

// serverTLS returns the configuration of a listener.
func serverTLS(files TLS, log *slog.Logger) (*tls.Config, error) {
	c := &certificates{files: files, log: log}
	if err := c.loadLocked(); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: c.current}, nil
}

// paths returns the paths of the files. The path of the client authorities is omitted if none is
// configured.
func (c *certificates) paths() []string {
	paths := []string{c.files.Cert, c.files.Key}
	if c.files.ClientCA != "" {
		paths = append(paths, c.files.ClientCA)
	}
	return paths
}

// current implements tls.Config.GetConfigForClient.
func (c *certificates) current(*tls.ClientHelloInfo) (*tls.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	same := true
	for i, path := range c.paths() {
		same = same && c.seen[i].Holds(path)
	}
	if same {
		return c.config, nil
	}
	switch err := c.loadLocked(); {
	case err == nil:
		c.reported = ""
	case err.Error() != c.reported:
		c.reported = err.Error()
		c.log.Error("the TLS files cannot be used: the previous ones stay in force", "error", err)
	}
	return c.config, nil
}

func (c *certificates) loadLocked() error {
	for i, path := range c.paths() {
		fi, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("TLS: %w", err)
		}
		if path == c.files.Key && fi.Mode().Perm()&0o007 != 0 {
			return fmt.Errorf("TLS: the key %s has mode %#o, which lets everybody read it: chmod 600 %s", path, fi.Mode().Perm(),
				path)
		}
		c.seen[i] = stamp.Of(fi)
	}
	pair, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return fmt.Errorf("--tls-cert %s, --tls-key %s: %w", c.files.Cert, c.files.Key, err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		NextProtos: []string{"h2", "http/1.1"}}
	if c.files.ClientCA != "" {
		p, err := os.ReadFile(c.files.ClientCA)
		if err != nil {
			return fmt.Errorf("--tls-client-ca: %w", err)
		}
		config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(p) {
			return fmt.Errorf("--tls-client-ca %s has no certificate in PEM", c.files.ClientCA)
		}
	}
	c.config = config
	return nil
}

// secure is a listener whose connections use TLS.
type secure struct {
	net.Listener
	config *tls.Config
}

// accepting returns the listener for a server. It accepts at most conns connections at once and, if
// TLS is configured, encrypts them.
func accepting(l net.Listener, conns int, log *slog.Logger) net.Listener {
	s, ok := l.(*secure)
	if !ok {
		return newLimited(l, conns)
	}
	return plainhttp.Redirecting(newLimited(s.Listener, conns), s.config, log)
}
