package integration_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// search returns the words that occur in files that the daemon has written since the given time.
// All words must have the same length.
func (d *daemon) search(t *testing.T, since time.Time, words ...string) map[string]bool {
	t.Helper()
	found := make(map[string]bool)
	for _, here := range d.searchFiles(t, since, words...) {
		maps.Copy(found, here)
	}
	return found
}

// searchFiles is like search, and returns the words of each file that has any of them.
func (d *daemon) searchFiles(t *testing.T, since time.Time, words ...string) map[string]map[string]bool {
	t.Helper()
	found := make(map[string]map[string]bool)
	for _, dir := range []string{d.state, d.ram, d.run} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // the file was removed after it was listed
			}
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			i, err := e.Info()
			if err != nil || i.ModTime().Before(since) {
				return nil
			}
			here := make(map[string]bool)
			if err := searchFile(path, words, here); err != nil {
				return err
			}
			if len(here) > 0 {
				found[path] = here
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// searchFile adds the words that a file contains to the given map. It skips holes.
func searchFile(path string, words []string, found map[string]bool) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	const step = 1 << 20
	keep := len(words[0]) - 1 // a word may span two chunks, so the end of a chunk is kept
	buf := make([]byte, keep+step)
	for at := int64(0); ; {
		data, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		if data > at { // there are only zeros before data
			clear(buf[:keep])
		}
		n, err := f.ReadAt(buf[keep:], data)
		if n == 0 && err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		for _, w := range words {
			if bytes.Contains(buf[:keep+n], []byte(w)) {
				found[w] = true
			}
		}
		copy(buf, buf[n:keep+n])
		at = data + int64(n)
	}
}
