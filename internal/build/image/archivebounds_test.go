package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The image library reads two files of an archive into memory: the manifest and the configuration.
// Both have bounds, even if links lead to them.
func TestFilesOfArchivesAreBounded(t *testing.T) {
	const manifest = `[{"Config": "config.json", "Layers": ["layer.tar"]}]`
	for want, files := range map[string][][2]string{
		"manifest.json has 1048577 bytes: at most 1048576": {
			{"manifest.json", manifest + strings.Repeat(" ", 1<<20+1-len(manifest))}},
		"config.json has 4194305 bytes: at most 4194304": {{"manifest.json", manifest},
			{"config.json", strings.Repeat(" ", maxConfigBytes+1)}},
		`no file "manifest.json"`: {{"config.json", "{}"}},
		`no file "config.json"`:   {{"manifest.json", manifest}},
	} {
		for _, linked := range []bool{false, true} {
			file := filepath.Join(t.TempDir(), "image.tar")
			var out bytes.Buffer
			var err error
			w := tar.NewWriter(&out)
			for _, f := range files {
				name := f[0]
				if linked {
					name = "real-" + name
					err = errors.Join(err, w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: f[0], Linkname: name}))
				}
				h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(f[1]))}
				err = errors.Join(err, w.WriteHeader(h))
				_, err2 := io.WriteString(w, f[1])
				err = errors.Join(err, err2)
			}
			if err := errors.Join(err, w.Close(), os.WriteFile(file, out.Bytes(), 0o600)); err != nil {
				t.Fatal(err)
			}
			if _, _, err := openArchive(file); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("linked %v: %v, want %s", linked, err, want)
			}
		}
	}
}
