package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"

	"github.com/forkd/forkd/internal/treetar"
)

// imageOf returns an image with a layer of these compressed bytes.
func imageOf(t *testing.T, compressed []byte) v1.Image {
	t.Helper()
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(compressed)), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// allocated returns how much f allocates, in bytes.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Extended headers that no entry follows are refused after some MiB, and not kept.
func TestHeadersOfLayersAreBounded(t *testing.T) {
	var one bytes.Buffer
	err := tar.NewWriter(&one).WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "x",
		PAXRecords: map[string]string{"SCHILY.xattr.user.x": strings.Repeat("x", 1000<<10)}})
	if err != nil {
		t.Fatal(err)
	}
	var z bytes.Buffer
	c := gzip.NewWriter(&z)
	for range 100 {
		c.Write(one.Bytes()[:one.Len()-512])
	}
	c.Write(one.Bytes()[one.Len()-512:])
	c.Write(make([]byte, 1024))
	c.Close()
	img := imageOf(t, z.Bytes())
	n := allocated(func() { err = writeContainer(t.Context(), io.Discard, img, false) })
	if !errors.Is(err, treetar.ErrHeaders) || n > 64<<20 {
		t.Errorf("%v; a layer of %d KiB allocates %d MiB", err, z.Len()>>10, n>>20)
	}
}

// A layer that zstd compressed is read like any other, but refused if its window has more than 128
// MiB.
func TestWindowsOfLayersAreBounded(t *testing.T) {
	for _, c := range []struct {
		window int
		fails  bool
	}{{8 << 20, false}, {zstd.MaxWindowSize, true}} {
		var z bytes.Buffer
		e, err := zstd.NewWriter(&z, zstd.WithWindowSize(c.window), zstd.WithSingleSegment(false))
		if err != nil {
			t.Fatal(err)
		}
		text := archive(t, reg("first"))
		e.Write(text[:700])
		e.Flush() // so that the size is not known when the frame begins
		e.Write(text[700:])
		e.Close()
		img := imageOf(t, z.Bytes())
		if img, err = mutate.ConfigFile(img, withConfig(t, img, "linux", "amd64")); err != nil {
			t.Fatal(err)
		}
		for what, b := range map[string]base{
			"an OCI layout": {kind: baseOCI, arg: writeLayout(t, img)},
			"an archive":    {kind: baseDockerArchive, arg: writeDockerArchive(t, img)},
			"a registry":    {kind: baseRegistry, arg: strings.TrimPrefix(pushToRegistry(t, img), "//")},
		} {
			var from *content
			n := allocated(func() {
				if from, err = resolveContainer(t.Context(), b, "", nil); err == nil {
					err = from.write(t.Context(), io.Discard)
				}
			})
			if errors.Is(err, zstd.ErrWindowSizeExceeded) != c.fails || !c.fails && err != nil || n > 64<<20 {
				t.Errorf("%s, a window of %d MiB: %v, %d MiB allocated", what, c.window>>20, err, n>>20)
			}
		}
	}
}

// The library reads two files of an archive into memory. Both have bounds, also behind links.
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

// Layers of an archive that are not compressed are read as they are, also through links, as docker save of some
// versions writes them. Their content is checked.
func TestPlainLayersOfArchives(t *testing.T) {
	layer := archive(t, reg("first"))
	img := containerOf(t, layer)
	config, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	for content, damaged := range map[string]bool{string(layer): false, string(archive(t, reg("other"))): true} {
		file := filepath.Join(t.TempDir(), "image.tar")
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, e := range []struct {
			name, link, text string
		}{
			{"manifest.json", "", `[{"Config": "config.json", "Layers": ["a/layer.tar"]}]`},
			{"config.json", "", string(config)}, {"a/layer.tar", "../b/layer.tar", ""}, {"b/layer.tar", "", content},
		} {
			h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: 0o644, Size: int64(len(e.text))}
			if e.link != "" {
				h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
			}
			err = errors.Join(err, w.WriteHeader(h))
			_, err2 := io.WriteString(w, e.text)
			err = errors.Join(err, err2)
		}
		if err := errors.Join(err, w.Close(), os.WriteFile(file, out.Bytes(), 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, plain, err := openArchive(file); err != nil || !plain {
			t.Errorf("plain %v, %v", plain, err)
		}
		from, err := resolveContainer(t.Context(), base{kind: baseDockerArchive, arg: file}, "", nil)
		if err == nil {
			err = from.write(t.Context(), io.Discard)
		}
		if (err != nil) != damaged || damaged && !strings.Contains(err.Error(), "damaged: layer 1") {
			t.Errorf("damaged %v: got %v", damaged, err)
		}
	}
}
