package hardlink

import (
	"os"
	"path/filepath"
	"testing"
)

// Other errors than that of too many links stay as they are. Package store tests that one.
func TestOtherErrors(t *testing.T) {
	dir := t.TempDir()
	if err := Link(filepath.Join(dir, "none"), filepath.Join(dir, "x")); !os.IsNotExist(err) {
		t.Errorf("a link to a missing file: %v", err)
	}
}
