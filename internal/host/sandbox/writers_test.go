package sandbox

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A file that somebody can still write is found, whatever he does with his descriptor.
func TestWritersAreFound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := noWriters(path); err != nil {
		t.Errorf("nobody writes it: %v", err)
	}
	writer, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if noWriters(path) == nil {
		t.Error("a descriptor for writing was not found")
	}
	mapped, err := unix.Mmap(int(writer.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	if noWriters(path) == nil {
		t.Error("a mapping for writing was not found")
	}
	if err := unix.Munmap(mapped); err != nil {
		t.Fatal(err)
	}
	if err := noWriters(path); err != nil {
		t.Errorf("nobody writes it any more: %v", err)
	}
}
