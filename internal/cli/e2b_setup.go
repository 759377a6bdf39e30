package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/private"
	"github.com/forkd/forkd/internal/rootcert"
)

// defaultE2BDomain has two labels, because Node.js accepts no wildcard certificate for *.localhost.
const defaultE2BDomain = "e2b.localhost:8443"

// e2bDir registers the flag for the directory of setup.
func e2bDir(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "dir", "", "directory of certificates and keys\n"+
		"(default /etc/forkd/e2b for root, else forkd/e2b in $XDG_CONFIG_HOME or ~/.config)")
}

func e2bDirPath(named string) (string, error) {
	if named != "" {
		return filepath.Abs(named)
	}
	path, err := configPath("e2b")
	if err != nil {
		return "", fmt.Errorf("%w; give --dir", err)
	}
	return path, nil
}

func newE2BSetupCmd() *cobra.Command {
	var domain, named string
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Create certificates for E2B's SDKs to reach sandboxes by host names",
		Long: "Creates a certificate authority for this host and a certificate for DOMAIN and *.DOMAIN, and prints how\n" +
			"to start the daemon with them. 'forkd e2b env' prints the environment for programs. The authority is\n" +
			"valid only for DOMAIN and loopback. Run it again to renew the certificate, or for another domain: the\n" +
			"daemon uses the new files automatically.",
		Args: usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := parseE2BDomain(domain)
			if err != nil {
				return usageError{err}
			}
			dir, err := e2bDirPath(named)
			if err != nil {
				return err
			}
			ends, err := setupE2B(dir, d, time.Now())
			if err != nil {
				return err
			}
			explainE2B(cmd.Context(), cmd.OutOrStdout(), dir, d, ends)
			return nil
		},
	}
	cmd.Flags().StringVar(&domain, "domain", defaultE2BDomain, "the domain, followed by :PORT unless that is 443")
	e2bDir(cmd, &named)
	return cmd
}

// e2bDomain is the domain below which ports have host names, and the port at which clients reach
// that domain.
type e2bDomain struct{ name, port string }

// host returns the domain and port for the configuration of clients.
func (d e2bDomain) host() string {
	if d.port == "443" {
		return d.name
	}
	return d.name + ":" + d.port
}

// dnsName matches a lower-case name of at least two labels. The daemon checks its length.
var dnsName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$`)

// parseE2BDomain parses a domain with an optional port. It refuses names for which TLS clients
// accept no certificate.
func parseE2BDomain(text string) (e2bDomain, error) {
	name, port, ok := strings.Cut(text, ":")
	if !ok {
		port = "443"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || !dnsName.MatchString(name) {
		return e2bDomain{}, fmt.Errorf("--domain %q: want a DNS name of at least two labels, in lower case, such as %s, followed by :PORT "+
			"unless that is 443; Node.js accepts no certificate for a single label", text, defaultE2BDomain)
	}
	return e2bDomain{name, port}, nil
}

// setupE2B writes files to dir: a certificate for d, the key of the certificate, and two files for
// clients (a bundle of authorities, and the domain). If dir has no authority, setupE2B makes one.
// It returns the time when the certificate expires.
func setupE2B(dir string, d e2bDomain, now time.Time) (ends time.Time, err error) {
	f, err := private.Dir(dir, "--dir")
	if err != nil {
		return ends, err
	}
	defer f.Close()
	a, _, err := openAuthority(dir, d.name, now)
	if err != nil {
		return ends, err
	}
	cert, key, ends, err := a.sign(d.name, now)
	if err != nil {
		return ends, err
	}
	roots, err := hostRoots()
	if err != nil {
		return ends, fmt.Errorf("read this host's authorities: %w", err)
	}
	for _, file := range []struct {
		name string
		data []byte
		mode fs.FileMode
	}{
		{keyFile, key, 0o600}, {certFile, cert, 0o644},
		{bundleFile, append(roots, rootcert.PEM(a.cert.Raw)...), 0o644}, {domainFile, []byte(d.host() + "\n"), 0o644},
	} {
		if err := atomicfile.Write(filepath.Join(dir, file.name), file.data, file.mode); err != nil {
			return ends, err
		}
	}
	return ends, nil
}

// explainE2B prints how to use the files.
func explainE2B(ctx context.Context, w io.Writer, dir string, d e2bDomain, ends time.Time) {
	printf(w, "%s: an authority, and a certificate for %s and *.%s until %s\n\n", dir, d.name, d.name,
		ends.Format(time.DateOnly))
	printf(w, "Start the daemon with\n\n  forkd daemon --bind 127.0.0.1:%s --proxy-domain %s \\\n    --tls-cert %s --tls-key %s\n\n", d.port,
		quotedIfNeeded("https://"+d.host()), quotedIfNeeded(filepath.Join(dir, certFile)),
		quotedIfNeeded(filepath.Join(dir, keyFile)))
	printf(w, "and, in shells that are to use it,\n\n  export %s=https://localhost:%s %s=%s    # for the commands of forkd\n"+
		"  eval \"$(forkd e2b env)\"    # for programs with E2B's SDKs\n", urlEnv, d.port, caEnv,
		quotedIfNeeded(filepath.Join(dir, caFile)))
	if err := resolvesToLoopback(ctx, "49983-sb-0."+d.name); err != nil {
		printf(w, "\nNames below %s do not lead to this host (%v). Each sandbox has several, so /etc/hosts\n"+
			"is not enough: have your DNS server answer for *.%s, for example dnsmasq by\n\n  address=/%s/127.0.0.1\n\n"+
			"or use a domain whose names do: one below localhost with systemd-resolved, or 127-0-0-1.sslip.io.\n", d.name, err,
			d.name, d.name)
	}
}

// resolvesToLoopback looks up a name as programs of this host do.
func resolvesToLoopback(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupIPAddr(ctx, name)
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return errors.New(dns.Err)
	case err != nil:
		return err
	}
	for _, a := range addrs {
		if !a.IP.IsLoopback() {
			return fmt.Errorf("%s is %s", name, a.IP)
		}
	}
	return nil
}

// readE2BSetup returns the domain for which setup was run, or "" if it was not run.
func readE2BSetup(dir string) (domain string, err error) {
	p, err := os.ReadFile(filepath.Join(dir, domainFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	domain = strings.TrimSpace(string(p))
	_, err = parseE2BDomain(domain)
	return domain, err
}
