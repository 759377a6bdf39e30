package cli

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The daemon's certificate is checked against the file of --ca. Without --ca, it is checked against
// the file of $FORKD_CA and, without that variable, against the host's root certificates.
func TestCAOfTheDaemon(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"ok": true}`))
	}))
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, text, 0o600); err != nil {
		t.Fatal(err)
	}
	ask := func(flag string) error {
		c, _, err := connectWith(t.Context(), server.URL, flag, nil)
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Healthy(t.Context())
	}
	if err := ask(""); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an authority that nobody knows: %v", err)
	}
	if err := ask(ca); err != nil {
		t.Errorf("--ca: %v", err)
	}
	t.Setenv(caEnv, ca)
	if err := ask(""); err != nil {
		t.Errorf("$%s: %v", caEnv, err)
	}
	t.Setenv(caEnv, ca+"x")
	if err := ask(""); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a missing file: %v", err)
	}
	t.Setenv(caEnv, "")
	t.Setenv(certEnv, ca)
	if err := ask(ca); err == nil || !strings.Contains(err.Error(), keyEnv) {
		t.Errorf("a certificate without a key: %v", err)
	}
}
