package registry

import (
	"os"
	"path/filepath"
	"testing"
)

// Only the directory with the registry's name is read, and files of other kinds are ignored.
func TestCertsOfOneRegistry(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "host:1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "host:1", "README"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"", ".", "..", "host:1/..", "../" + filepath.Base(dir), "other:1"} {
		if c, err := Certs(dir, host); c != nil || err != nil {
			t.Errorf("%q: %v, %v", host, c, err)
		}
	}
	if c, err := Certs("", "host:1"); c != nil || err != nil {
		t.Errorf("without a directory: %v, %v", c, err)
	}
	if c, err := Certs(dir, "host:1"); err != nil || c == nil || c.RootCAs != nil || len(c.Certificates) != 0 {
		t.Errorf("%v, %v", c, err)
	}
}
