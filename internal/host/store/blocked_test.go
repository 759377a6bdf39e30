package store

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/writers/writertest"
)

func TestMain(m *testing.M) { os.Exit(writertest.Main(m)) }

// A daemon was killed during a branch, and the VMM blocks a write to a file of that branch for ever.
// The next daemon starts, and removes the file when the VMM has ended and the store makes a snapshot.
func TestOpenDoesNotWaitForABlockedWrite(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "base", "")
	g, err := s.Stage("lost")
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	var blocked []io.Closer
	for _, name := range []string{snapshot.StateFile, snapshot.MemoryLayerFile} { // on disk and in RAM
		f, err := g.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, f.Name())
		blocked = append(blocked, writertest.Block(t, f))
		f.Close()
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = d.open(t)
	if list := s.List(); len(list) != 1 || list[0].Tag != "base" {
		t.Errorf("after the restart: %+v", list)
	}
	for i, path := range paths {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("a file with a writer: %v", err)
		}
		blocked[i].Close()
	}
	publish(t, s, d, "next", "")
	for _, path := range paths {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a file of a VMM that has ended: %v", err)
		}
	}
}

// A snapshot whose VMM does not answer is discarded while the VMM blocks a write to a file of the
// snapshot. The files are removed when the VMM has ended and the store makes the next snapshot.
func TestDiscardDoesNotWaitForABlockedWrite(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	g, err := s.Stage("lost")
	if err != nil {
		t.Fatal(err)
	}
	f, err := g.Create(snapshot.StateFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(g.Path(snapshot.ManifestFile), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	blocked := writertest.Block(t, f)
	f.Close()
	g.Discard()
	if _, err := os.Lstat(g.Path(snapshot.ManifestFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("with its manifest, the next daemon would take over the rest: %v", err)
	}
	if err := blocked.Close(); err != nil {
		t.Fatal(err)
	}
	publish(t, s, d, "base", "")
	if _, err := os.Lstat(filepath.Dir(f.Name())); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of the discarded snapshot: %v", err)
	}
}
