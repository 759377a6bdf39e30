package mutants

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"testing"
)

// Every patch applies to the present source, and the patched packages compile. Command run then
// shows that the torture finds the defect, but needs VMs for that.
func TestPatchesApply(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		t.Run(m.Name, func(t *testing.T) {
			dir := t.TempDir()
			replaced, err := m.Overlay(root, filepath.Join(dir, "tree"))
			if err != nil {
				t.Fatalf("%v\nChange the source in the same way again, and replace the diff by the output of git diff", err)
			}
			overlay := filepath.Join(dir, "overlay.json")
			if err := WriteOverlay(overlay, replaced); err != nil {
				t.Fatal(err)
			}
			args := []string{"build", "-overlay", overlay}
			for _, f := range m.Files {
				if pkg := "./" + path.Dir(f); !slices.Contains(args, pkg) {
					args = append(args, pkg)
				}
			}
			build := exec.Command("go", args...)
			build.Dir = root
			if out, err := build.CombinedOutput(); err != nil {
				t.Errorf("go %v: %v\n%s", args, err, out)
			}
		})
	}
	if len(all) == 0 {
		t.Error("there are no mutants")
	}
}

// A patch that no longer fits the source is refused, even if only its context has changed.
func TestPatchThatDoesNotFit(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	m := all[0]
	if _, err := m.Overlay(t.TempDir(), t.TempDir()); err == nil {
		t.Error("a patch of missing files applies")
	}
	root := t.TempDir()
	writeFiles(t, root, m.Files, "package other\n")
	if _, err := m.Overlay(root, filepath.Join(t.TempDir(), "tree")); err == nil {
		t.Error("a patch applies to files with other content")
	}
}

// Command run also runs the torture without a defect.
func TestOverlayWithoutDefect(t *testing.T) {
	m := Mutant{Name: "none", Run: VMM}
	replaced, err := m.Overlay(t.TempDir(), filepath.Join(t.TempDir(), "tree"))
	if err != nil || len(replaced) != 0 {
		t.Errorf("got %v, %v", replaced, err)
	}
}

func writeFiles(t *testing.T, root string, names []string, content string) {
	t.Helper()
	for _, name := range names {
		file := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if err == nil {
			err = os.WriteFile(file, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestParse(t *testing.T) {
	const diff = "diff --git a/x.go b/x.go\n--- a/x.go\n+++ b/x.go\n@@ -1 +1 @@\n-a\n+b\n"
	m, err := parse("x", []byte("Something\nis wrong.\n\nRun: daemon\n\n"+diff))
	if err != nil || m.Text != "Something is wrong." || m.Run != Daemon || !slices.Equal(m.Files, []string{"x.go"}) {
		t.Errorf("got %+v, %v", m, err)
	}
	for _, head := range []string{"", "Something.\n\n", "Something.\n\nRun: never\n\n", "\nRun: vmm\n\n"} {
		bad := head + diff
		if m, err := parse("x", []byte(bad)); err == nil {
			t.Errorf("%q: got %+v", bad, m)
		}
	}
	if m, err := parse("x", []byte("Something is wrong.\n\nRun: vmm\n\ndiff --git a/x.go b/x.go\n")); err == nil {
		t.Errorf("a patch that changes no file: got %+v", m)
	}
	if m, err := parse("x", nil); err == nil {
		t.Errorf("an empty file: got %+v", m)
	}
}
