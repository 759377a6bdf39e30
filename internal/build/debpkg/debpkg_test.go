package debpkg

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

func TestCompareVersions(t *testing.T) {
	got := []string{"6.12.117+deb12-c", "6.12.9+deb12-c", "6.12.43+deb13-c", "6.12.43+deb13+1-c"}
	slices.SortFunc(got, CompareVersions)
	if want := []string{"6.12.9+deb12-c", "6.12.43+deb13-c", "6.12.43+deb13+1-c", "6.12.117+deb12-c"}; !slices.Equal(got,
		want) {
		t.Errorf("got %q", got)
	}
}

// A package is unpacked. Take finds its files in both layouts that Debian has used.
func TestUnpackAndTake(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("this host has no dpkg-deb")
	}
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	for name, text := range map[string]string{
		"DEBIAN/control": "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n",
		"boot/kernel":    "old", "usr/lib/modules/m": "new",
	} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	deb, tree := filepath.Join(dir, "x.deb"), filepath.Join(dir, "tree")
	if _, err := Run(t.Context(), dir, "dpkg-deb", "--build", root, deb); err != nil {
		t.Fatal(err)
	}
	if err := Unpack(t.Context(), deb, tree); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"boot/kernel": "old", "lib/modules": "new"} {
		to := filepath.Join(dir, filepath.Base(name))
		if err := Take(tree, name, to); err != nil {
			t.Fatal(err)
		}
		if name == "lib/modules" {
			to = filepath.Join(to, "m")
		}
		if got, err := os.ReadFile(to); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if err := Take(tree, "boot/kernel", filepath.Join(dir, "again")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := Unpack(t.Context(), filepath.Join(root, "boot/kernel"), tree); err == nil {
		t.Error("something else than a package was unpacked")
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, "", "sleep", "1000"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := Run(t.Context(), t.TempDir(), "sh", "-c", "echo the reason >&2; exit 3"); err == nil {
		t.Error("a tool that failed is no error")
	}
}

// FetchWhole unpacks all packages that apt names. The resulting tree appears completely or not at
// all.
func TestFetchWhole(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("this host has no dpkg-deb")
	}
	dir, bin := t.TempDir(), t.TempDir()
	for _, name := range []string{"program", "library"} {
		root := filepath.Join(dir, name)
		control := "Package: " + name + "\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n"
		if err := errors.Join(os.MkdirAll(filepath.Join(root, "DEBIAN"), 0o755),
			os.MkdirAll(filepath.Join(root, "usr"), 0o755),
			os.WriteFile(filepath.Join(root, "DEBIAN/control"), []byte(control), 0o644),
			os.WriteFile(filepath.Join(root, "usr", name), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		if _, err := Run(t.Context(), dir, "dpkg-deb", "--build", root, filepath.Join(bin, name+".deb")); err != nil {
			t.Fatal(err)
		}
	}
	// A fake apt-get with two packages in its archive. It downloads them into the working
	// directory.
	apt := `#!/bin/sh
case "$*" in
*indextargets*) echo "$ARCHIVE" ;;
*install*program*) cp "${0%/*}"/*.deb "$(echo "$*" | sed 's/.*Dir::Cache::archives=\([^ ]*\).*/\1/')" ;;
*install*) echo "E: no such package" >&2; exit 100 ;;
esac
`
	if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte(apt), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	cache := filepath.Join(dir, "cache")
	if _, err := FetchWhole(t.Context(), cache, "other", "program"); !errors.Is(err, ErrNoArchive) {
		t.Errorf("on a host without Debian's archive: %v", err)
	}
	t.Setenv("ARCHIVE", "http://archive.example/debian")
	if _, err := FetchWhole(t.Context(), cache, "other", "nothing"); err == nil {
		t.Error("a package that is not there was fetched")
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) > 0 {
		t.Errorf("failures left %v, %v", left, err)
	}
	tree, err := FetchWhole(t.Context(), cache, "other", "program")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"program", "library"} {
		if _, err := os.Stat(filepath.Join(tree, "usr", name)); err != nil {
			t.Error(err)
		}
	}
}
