package hardlink

import (
	"os"
	"path/filepath"
	"testing"
)

// All errors except the one for too many links are returned unchanged. Package store tests that
// exception.
func TestOtherErrors(t *testing.T) {
	dir := t.TempDir()
	if err := Link(filepath.Join(dir, "none"), filepath.Join(dir, "x")); !os.IsNotExist(err) {
		t.Errorf("a link to a missing file: %v", err)
	}
}
