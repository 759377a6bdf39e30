package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const testKey = "0123456789abcdef0123456789abcdef"

// fakeImage writes an image whose file system consists of a superblock only.
func fakeImage(t *testing.T, cache, key string) string {
	t.Helper()
	const blocks = 16
	rootfs := make([]byte, blocks*blockSize)
	rootfs[1024+4] = blocks
	rootfs[1024+0x38], rootfs[1024+0x39] = 0x53, 0xEF
	dir := filepath.Join(imagesDir(cache), key)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, rootfsName), rootfs, 0o600); err != nil {
		t.Fatal(err)
	}
	sum, err := fileSHA256(t.Context(), filepath.Join(dir, rootfsName))
	if err != nil {
		t.Fatal(err)
	}
	writeManifest(t, dir, &Manifest{FormatVersion: FormatVersion, Key: key, RootfsSHA256: sum,
		RootfsSize: blocks * blockSize})
	return dir
}

func writeManifest(t *testing.T, dir string, m *Manifest) {
	t.Helper()
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, manifestName), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefusesDamagedAndForeign(t *testing.T) {
	edit := func(f func(m *Manifest)) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			img, err := Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			f(&img.Manifest)
			writeManifest(t, dir, &img.Manifest)
		}
	}
	write := func(name, text string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for what, c := range map[string]struct {
		damage func(t *testing.T, dir string)
		want   string
	}{
		"no manifest":    {func(_ *testing.T, dir string) { os.Remove(filepath.Join(dir, manifestName)) }, "image.json"},
		"empty manifest": {write(manifestName, ""), "image.json"},
		"huge manifest":  {write(manifestName, strings.Repeat(" ", maxManifestBytes+1)), "larger than"},
		"other format": {edit(func(m *Manifest) { m.FormatVersion++ }),
			fmt.Sprintf("format version %d", FormatVersion+1)},
		"another key": {edit(func(m *Manifest) { m.Key = strings.Repeat("f", 32) }), "not for this directory"},
		"wrong size":  {edit(func(m *Manifest) { m.RootfsSize++ }), "bytes"},
		"truncated rootfs": {func(_ *testing.T, dir string) { os.Truncate(filepath.Join(dir, rootfsName), blockSize) },
			"bytes"},
		"no rootfs": {func(_ *testing.T, dir string) { os.Remove(filepath.Join(dir, rootfsName)) }, "no rootfs.ext4"},
		"rootfs elsewhere": {func(_ *testing.T, dir string) {
			os.Remove(filepath.Join(dir, rootfsName))
			os.Symlink("/etc/passwd", filepath.Join(dir, rootfsName))
		}, "not a regular file"},
		"not ext4": {func(_ *testing.T, dir string) {
			os.Truncate(filepath.Join(dir, rootfsName), 0)
			os.Truncate(filepath.Join(dir, rootfsName), 16*blockSize)
		}, "not an ext4"},
	} {
		dir := fakeImage(t, t.TempDir(), testKey)
		c.damage(t, dir)
		_, err := Open(dir)
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: got %v, want an InvalidError with %q and the directory", what, err, c.want)
		}
	}
}

func TestVerifyFindsChangedContent(t *testing.T) {
	dir := fakeImage(t, t.TempDir(), testKey)
	img, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := img.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(img.Rootfs(), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{1}, 3*blockSize); err != nil {
		t.Fatal(err)
	}
	var invalid *InvalidError
	if err := img.Verify(t.Context()); !errors.As(err, &invalid) {
		t.Errorf("got %v", err)
	}
}
