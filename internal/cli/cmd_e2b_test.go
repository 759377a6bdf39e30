package cli

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/rootcert"
)

func TestE2BEnv(t *testing.T) {
	for _, c := range []struct{ address, token, domain, dir, want string }{
		{"http://127.0.0.1:1/", "", "", "",
			"export E2B_API_URL='http://127.0.0.1:1'\nexport E2B_SANDBOX_URL='http://127.0.0.1:1'\n" +
				"export E2B_VOLUME_API_URL='http://127.0.0.1:1'\nexport E2B_API_KEY='e2b_00'\nunset E2B_DOMAIN\n"},
		{"http://h:1", "0123456789abcdef", "", "",
			"'http://h:1'\nexport E2B_API_KEY='e2b_0123456789abcdef'\nunset E2B_DOMAIN\n"},
		{"http://h:1", "e2b_00ff", "", "", "export E2B_API_KEY='e2b_00ff'\nunset E2B_DOMAIN\n"},
		{"http://h:1", "it's", "", "",
			"export E2B_API_KEY='it'\\''s'\nexport E2B_VALIDATE_API_KEY='false'\nunset E2B_DOMAIN\n"},
		{"unix:///run/x", "00", "s.example.com:8443", "",
			"export E2B_DOMAIN='s.example.com:8443'\nexport E2B_API_KEY='e2b_00'\n" +
				"unset E2B_API_URL E2B_SANDBOX_URL E2B_VOLUME_API_URL\n"},
		{"unix:///run/x", "00", "a.b", "/d", "export E2B_API_KEY='e2b_00'\nexport SSL_CERT_FILE='/d/bundle.pem'\n" +
			"export REQUESTS_CA_BUNDLE='/d/bundle.pem'\nexport NODE_EXTRA_CA_CERTS='/d/ca.pem'\n" +
			"unset E2B_API_URL E2B_SANDBOX_URL E2B_VOLUME_API_URL\n"},
	} {
		var out strings.Builder
		env, err := e2bEnv(c.address, c.token, c.domain, c.dir)
		if err == nil {
			err = printE2BEnv(&out, env, false)
		}
		if err != nil || !strings.HasSuffix(out.String(), c.want) {
			t.Errorf("%+v: %q, %v", c, out.String(), err)
		}
	}
	if _, err := e2bEnv("unix:///run/x", "", "", ""); err == nil {
		t.Error("a unix socket is printed")
	}
}

// The command `forkd e2b env` finds the files that `forkd e2b setup` has made, and a shell accepts
// its output.
func TestE2BSetup(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "it's here")
	t.Setenv(urlEnv, "http://127.0.0.1:1")
	t.Setenv(tokenEnv, "")
	said, _ := e2bRun(t, 0, "e2b", "setup", "--dir", dir, "--domain", "sandboxes.test:8443")
	for _, want := range []string{"--proxy-domain https://sandboxes.test:8443", "--bind 127.0.0.1:8443",
		"sandboxes.test do not lead to this host"} {
		if !strings.Contains(said, want) {
			t.Errorf("setup does not say %q:\n%s", want, said)
		}
	}
	text, _ := e2bRun(t, 0, "e2b", "env", "--dir", dir)
	got, err := exec.Command("sh", "-ec",
		`E2B_API_URL=old; eval "$1"; echo "$E2B_DOMAIN${E2B_API_URL-}"; cat "$SSL_CERT_FILE" "$NODE_EXTRA_CA_CERTS" >/dev/null`,
		"sh", text).CombinedOutput()
	if err != nil || string(got) != "sandboxes.test:8443\n" {
		t.Errorf("a shell makes %q of it, %v:\n%s", got, err, text)
	}
	object, _ := e2bRun(t, 0, "e2b", "env", "--dir", dir, "-o", "json")
	env := map[string]string{}
	if err := json.Unmarshal([]byte(object), &env); err != nil || env["E2B_DOMAIN"] != "sandboxes.test:8443" ||
		env["E2B_API_KEY"] == "" {
		t.Errorf("%s: %v", object, err)
	}
	if text, _ := e2bRun(t, 0, "e2b", "env", "--dir", dir, "--plain"); !strings.Contains(text,
		"E2B_API_URL='http://127.0.0.1:1'") || strings.Contains(text, "CERT") {
		t.Errorf("--plain: %s", text)
	}
	for _, domain := range []string{"localhost", "https://a.b", "a.b:0", "-a.b", ""} {
		if _, wrong := e2bRun(t, exitUsage, "e2b", "setup", "--dir", dir, "--domain", domain); !strings.Contains(wrong,
			"--domain") {
			t.Errorf("--domain %q: %s", domain, wrong)
		}
	}
}

func e2bRun(t *testing.T, want int, args ...string) (out, errs string) {
	t.Helper()
	var o, e strings.Builder
	if code := Main(args, Stdio{In: strings.NewReader(""), Out: &o, Err: &e}); code != want {
		t.Errorf("%q: exit code %d, want %d: %s", args, code, want, e.String())
	}
	return o.String(), e.String()
}

func TestE2BCertificates(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "e2b")
	d, err := parseE2BDomain("e2b.localhost:8443")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if _, err := setupE2B(dir, d, now); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"": 0o700, caKeyFile: 0o600, keyFile: 0o600, caFile: 0o644} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v, want mode %o", name, info, err, want)
		}
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, certFile), filepath.Join(dir, keyFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{caFile, bundleFile} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(text)
		for _, name := range []string{"e2b.localhost", "api.e2b.localhost", "49983-sb-0.e2b.localhost", "localhost",
			"127.0.0.1"} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now}); err != nil {
				t.Errorf("%s, %s: %v", file, name, err)
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, caFile))
	if err != nil {
		t.Fatal(err)
	}
	again := func(domain string, at time.Time) string {
		t.Helper()
		d, err := parseE2BDomain(domain)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := setupE2B(dir, d, at); err != nil {
			t.Fatal(err)
		}
		p, err := os.ReadFile(filepath.Join(dir, caFile))
		if err != nil {
			t.Fatal(err)
		}
		return string(p)
	}
	if again("e2b.localhost", now) != string(text) {
		t.Error("a second run made another authority, which nobody trusts")
	}
	if again("e2b.localhost", now.AddDate(rootcert.Years-1, 0, 0)) == string(text) {
		t.Error("the authority ends before the certificate")
	}
	if other := again("else.test", now); other == string(text) {
		t.Error("an authority signs for a domain that it may not sign for")
	}
	if err := os.Remove(filepath.Join(dir, caKeyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := setupE2B(dir, d, now); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("without the authority's key: %v", err)
	}
}

// A client that trusts the authority accepts only certificates for the authority's domain.
func TestE2BAuthorityIsLimited(t *testing.T) {
	now := time.Now()
	a, err := newAuthority("e2b.localhost", now)
	if err != nil {
		t.Fatal(err)
	}
	cert, _, _, err := a.sign("bank.example", now)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(cert)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	if _, err := c.Verify(x509.VerifyOptions{Roots: roots, DNSName: "bank.example", CurrentTime: now}); err == nil {
		t.Error("it vouches for bank.example")
	}
}
