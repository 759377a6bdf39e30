package trust

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
)

func certificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// The certificate is appended once to a distribution's bundle, at any of the known paths. If an
// image has no bundle, one is created.
func TestInstall(t *testing.T) {
	first, second := certificate(t), certificate(t)
	for bundle, before := range map[string]string{
		bundles[0]: "", bundles[1]: first, bundles[2]: first[:len(first)-1],
	} {
		root := t.TempDir()
		path := filepath.Join(root, bundle)
		if before != "" {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path+".real", []byte(before), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(filepath.Base(path)+".real", path); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			env, err := install(root, second)
			if err != nil || env["SSL_CERT_FILE"] != bundle || env["REQUESTS_CA_BUNDLE"] != bundle ||
				env["NODE_EXTRA_CA_CERTS"] != source {
				t.Errorf("%v, %v", env, err)
			}
		}
		want := second
		if before != "" {
			want = first + second
		}
		if got, err := os.ReadFile(path); string(got) != want || err != nil {
			t.Errorf("%s has %q, %v", bundle, got, err)
		}
		if got, err := os.ReadFile(filepath.Join(root, source)); string(got) != second || err != nil {
			t.Errorf("%s has %q, %v", source, got, err)
		}
		if before != "" {
			if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSymlink == 0 {
				t.Errorf("the link %s was replaced: %v", bundle, err)
			}
		}
	}
}

func TestInstallRefusesWhatIsNoCertificate(t *testing.T) {
	good := certificate(t)
	root := t.TempDir()
	for _, text := range []string{"", "x", good + good, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
		string(bytes.ReplaceAll([]byte(good), []byte("CERTIFICATE"), []byte("PRIVATE KEY")))} {
		if _, err := install(root, text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
	if left, err := os.ReadDir(root); len(left) != 0 || err != nil {
		t.Errorf("%v, %v", left, err)
	}
}
