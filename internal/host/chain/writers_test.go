package chain

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// NoWriters finds a process that can still write to a file, through a descriptor or through a mapping
// that outlives the descriptor.
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
	if err := NoWriters(path, WriterPatience); err != nil {
		t.Errorf("nobody writes it: %v", err)
	}
	writer, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if NoWriters(path, 0) == nil {
		t.Error("a descriptor for writing was not found")
	}
	mapped, err := unix.Mmap(int(writer.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	if NoWriters(path, 0) == nil {
		t.Error("a mapping for writing was not found")
	}
	if err := unix.Munmap(mapped); err != nil {
		t.Fatal(err)
	}
	if err := NoWriters(path, WriterPatience); err != nil {
		t.Errorf("nobody writes it any more: %v", err)
	}
}

// A process that is being started has copies of the daemon's descriptors until it executes its
// program. If the daemon closes a file at that time, NoWriters does not return an error because of
// these copies.
func TestWritersThatGoAreWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	writer, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { writer.Close() })
	if err := NoWriters(path, time.Hour); err != nil {
		t.Error(err)
	}
}
