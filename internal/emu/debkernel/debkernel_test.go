package debkernel

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestFindTakesTheNewest(t *testing.T) {
	dir := t.TempDir()
	if _, err := Find(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("empty directory: got %v, want fs.ErrNotExist", err)
	}
	for _, version := range []string{"6.12.9+deb12-amd64", "6.12.117+deb12-amd64", "6.12.20-amd64", ".staging-1"} {
		if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, version, bzImageName), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// Without a bzImage, a kernel is not complete.
	if err := os.Mkdir(filepath.Join(dir, "7.0-amd64"), 0o755); err != nil {
		t.Fatal(err)
	}
	k, err := Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "6.12.117+deb12-amd64", "vmlinux"); k.VMLinux != want {
		t.Errorf("got %s, want %s", k.VMLinux, want)
	}
}

func TestImageDependency(t *testing.T) {
	got, ok := imageDependency("linux-image-6.12-amd64\n  Depends: linux-image-6.12.117+deb12-amd64\n")
	if !ok || got != "linux-image-6.12.117+deb12-amd64" {
		t.Errorf("got %q, %v", got, ok)
	}
	for _, out := range []string{"", "linux-image-amd64\n", "x\n  Depends: linux-image-generic\n",
		"x\n  Depends: <linux-image-6.1-amd64>\n", "x\n  Depends: linux-image-6.12.1-amd64/../../x\n"} {
		if got, ok := imageDependency(out); ok {
			t.Errorf("%q: got %q, want nothing", out, got)
		}
	}
}

func TestStatic(t *testing.T) {
	if static("debkernel_test.go") || static("/no/such/file") {
		t.Error("something that is not an ELF file is called static")
	}
}
