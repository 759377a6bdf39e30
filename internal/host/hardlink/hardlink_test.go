package hardlink

import (
	"os"
	"path/filepath"
	"testing"
)

// All errors are returned unchanged, except the error for too many links. Package store tests that
// error.
func TestOtherErrors(t *testing.T) {
	dir := t.TempDir()
	if err := Link(filepath.Join(dir, "none"), filepath.Join(dir, "x")); !os.IsNotExist(err) {
		t.Errorf("a link to a missing file: %v", err)
	}
}
