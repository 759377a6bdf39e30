package integration_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/client"
)

// TestHostDirectory copies a directory of this host into two new sandboxes, in which the files are
// separate.
func TestHostDirectory(t *testing.T) {
	d := load(t).start(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"a": "text\n", "sub/b": "more\n"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("sub/b", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	var f client.Forked
	d.cliJSON(t, &f, "fork", tag, "-n", "2", "-v", dir+":/root/src")
	one, two := f.Sandboxes[0].ID, f.Sandboxes[1].ID
	d.sh(t, one, "echo changed >/root/src/a")
	for id, want := range map[string]string{one: "changed\nmore\n600 sub/b\n", two: "text\nmore\n600 sub/b\n"} {
		if got := d.sh(t, id, "cd /root/src && cat a link && stat -c %a a | tr '\\n' ' ' && readlink link"); got != want {
			t.Errorf("%s has %q, want %q", id, got, want)
		}
	}
	d.kill(t, f.Sandboxes...)
}
