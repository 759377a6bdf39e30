package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/forkd/forkd/internal/format/ext4"
	"github.com/forkd/forkd/internal/proto/imageproto"
)

// containerOf makes an image with an environment and one layer per archive.
func containerOf(t *testing.T, layers ...[]byte) v1.Image {
	t.Helper()
	img := v1.Image(empty.Image)
	for _, l := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(l)),
				nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatal(err)
		}
	}
	img, err := mutate.ConfigFile(img, withConfig(t, img, "linux", "amd64"))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func withConfig(t *testing.T, img v1.Image, goos, arch string) *v1.ConfigFile {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = goos, arch
	config.Config.Env = []string{"PATH=/usr/bin", "bad name=x", "LANG=C"}
	return config
}

// testImage has two layers: the second deletes, replaces and hides files of the first.
func testImage(t *testing.T) v1.Image {
	t.Helper()
	return containerOf(t,
		archive(t, dir("etc"), reg("etc/deleted"), reg("etc/kept"), dir("gone"), reg("gone/a"), dir("opaque"),
			reg("opaque/old"),
			reg("bin/tool"), hard("bin/alias", "bin/tool"), sym("lib", "usr/lib"),
			tar.Header{Typeflag: tar.TypeReg, Name: "home/user/f", Uid: 1000, Gid: 1001, Mode: 0o600}),
		archive(t, reg("etc/.wh.deleted"), reg(".wh.gone"), reg("opaque/.wh..wh..opq"), reg("opaque/new"),
			tar.Header{Typeflag: tar.TypeReg, Name: "etc/kept", Size: 5, Mode: 0o640}))
}

func writeLayout(t *testing.T, img v1.Image) string {
	t.Helper()
	p, err := layout.Write(filepath.Join(t.TempDir(), "layout"), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(img, layout.WithAnnotations(map[string]string{refNameAnnotation: "v1"})); err != nil {
		t.Fatal(err)
	}
	return string(p)
}

func writeDockerArchive(t *testing.T, img v1.Image) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image.tar")
	tag, err := name.NewTag("test/image:v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(file, tag, img); err != nil {
		t.Fatal(err)
	}
	return file
}

func pushToRegistry(t *testing.T, img v1.Image) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	reference := strings.TrimPrefix(server.URL, "http://") + "/test/image:v1"
	if err := push(reference, img); err != nil {
		t.Fatal(err)
	}
	return reference
}

func push(reference string, img v1.Image) error {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return err
	}
	return remote.Write(ref, img)
}

// builderVM stands in for the VM that fills disks. It writes an empty file system to the disk, and
// keeps the streams.
type builderVM struct {
	headers []imageproto.Header
	layers  [][]byte // decompressed layers of all streams
}

func (v *builderVM) fill(ctx context.Context, d Disk) error {
	in, out := io.Pipe()
	defer in.Close()
	sent := make(chan error, 1)
	go func() {
		err := d.Stream(ctx, out)
		sent <- err
		out.CloseWithError(err)
	}()
	r := imageproto.NewReader(in)
	h, err := r.Header()
	if err != nil {
		return err
	}
	v.headers = append(v.headers, h)
	for i, l := range h.Layers {
		data, err := io.ReadAll(r.Layer())
		if err != nil {
			return err
		}
		if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
			z, err := gzip.NewReader(bytes.NewReader(data))
			if err != nil {
				return err
			}
			if data, err = io.ReadAll(z); err != nil {
				return fmt.Errorf("damaged: layer %d: %w", i+1, err)
			}
		}
		if sum, _, err := v1.SHA256(bytes.NewReader(data)); err != nil || l.DiffID != "" && sum.String() != l.DiffID {
			return fmt.Errorf("damaged: layer %d has digest %s, %w", i+1, sum, err)
		}
		v.layers = append(v.layers, data)
	}
	if err := <-sent; err != nil {
		return err
	}
	f, err := os.Create(d.Path)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(int64(d.MiB)*mib), ext4.Format(f, int64(d.MiB)*mib, d.UUID), f.Close())
}

func TestBuildFromContainers(t *testing.T) {
	img := testImage(t)
	dirOfLayout := writeLayout(t, img)
	for _, base := range []string{
		"oci:" + dirOfLayout, "oci:" + dirOfLayout + ":v1", "docker-archive:" + writeDockerArchive(t, img),
		"docker://" + pushToRegistry(t, img),
	} {
		kind, _, _ := strings.Cut(base, ":")
		t.Run(kind, func(t *testing.T) {
			cache := t.TempDir()
			r := &Recipe{Name: "x", Base: base, DiskMiB: 64, MemoryMiB: 128, VCPUs: 1,
				Env:  map[string]string{"LANG": "C.UTF-8"},
				User: true, files: []overlayFile{
					{name: "etc/motd", typ: tar.TypeReg, mode: 0o604, data: []byte("hello")},
					{name: "srv/app/empty", typ: tar.TypeDir, mode: 0o755},
					{name: "srv/app/link", typ: tar.TypeSymlink, link: "../x"},
				}}
			v := &builderVM{}
			built, err := Build(t.Context(), cache, r, Unpacker{Fill: v.fill}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := built.Verify(t.Context()); err != nil {
				t.Error(err)
			}
			if h := v.headers[0]; len(h.Layers) != 3 || !h.User || h.Layers[1].Files || !h.Layers[2].Files {
				t.Errorf("header %+v", h)
			}
			for i, want := range []string{"etc/deleted", "opaque/.wh..wh..opq", "srv/app/link"} {
				if !bytes.Contains(v.layers[i], []byte(want)) {
					t.Errorf("layer %d lacks %s", i+1, want)
				}
			}
			if env := r.EnvOver(built.Env); env["PATH"] != "/usr/bin" || env["LANG"] != "C.UTF-8" || len(env) != 2 {
				t.Errorf("environment %v", env)
			}
			if got := names(t, imagesDir(cache)); len(got) != 1 {
				t.Errorf("left in the cache: %q", got)
			}
			other := *r // change only fields that the file system does not depend on
			other.Name, other.Description, other.MemoryMiB, other.VCPUs = "y", "d", 256, 2
			other.Warmup, other.Env = Warmup{Python: "x"}, map[string]string{"LANG": "C"}
			again, err := Build(t.Context(), cache, &other, Unpacker{Fill: v.fill}, func(s Step) {
				if s.Stage != StageResolve {
					t.Errorf("second build does %q", s.Stage)
				}
			})
			if err != nil || again.Dir != built.Dir || !again.Created.Equal(built.Created) {
				t.Errorf("second build: %v, %v", again, err)
			}
		})
	}
}

// If the context of a stream ends, the stream ends too, even if the registry has not begun to
// answer.
func TestStreamsEndWithTheirContext(t *testing.T) {
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	begun, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var silent atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if silent.Load() && strings.Contains(r.URL.Path, "/blobs/") {
			once.Do(func() { close(begun) })
			<-release
		}
		inner.ServeHTTP(w, r)
	}))
	defer server.Close()
	defer close(release)
	reference := strings.TrimPrefix(server.URL, "http://") + "/test/image:v1"
	if err := push(reference, testImage(t)); err != nil {
		t.Fatal(err)
	}
	c, err := resolveContainer(t.Context(), base{kind: baseRegistry, arg: reference}, &Recipe{})
	if err != nil {
		t.Fatal(err)
	}
	silent.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.stream(ctx, io.Discard) }()
	<-begun
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the stream waits for the registry although its context has ended")
	}
}

// If the environment of an image is too large for a finished image or for a snapshot, the image is
// refused before the work begins.
func TestEnvironmentsAreChecked(t *testing.T) {
	u := Unpacker{Fill: func(context.Context, Disk) error {
		t.Error("the disk is filled")
		return nil
	}}
	large := &content{env: map[string]string{"V": strings.Repeat("<", 1<<20)}} // each < takes 6 bytes in JSON
	if err := fill(t.Context(), t.TempDir(), testKey, &Recipe{DiskMiB: 64}, large, u, nil); err == nil ||
		!strings.Contains(err.Error(), "the image's environment is too large") {
		t.Errorf("%v", err)
	}
	img := testImage(t)
	config := withConfig(t, img, "linux", "amd64")
	for i := range 300 {
		config.Config.Env = append(config.Config.Env, fmt.Sprintf("V%d=x", i))
	}
	img, err := mutate.ConfigFile(img, config)
	if err != nil {
		t.Fatal(err)
	}
	r := &Recipe{Name: "x", Base: "oci:" + writeLayout(t, img), DiskMiB: 64, MemoryMiB: 128, VCPUs: 1}
	if _, err = Build(t.Context(), t.TempDir(), r, u, nil); err == nil ||
		!strings.Contains(err.Error(), "env has 302 variables") {
		t.Errorf("%v", err)
	}
}

// If a layer of a local image does not match its digest, the VM does not receive the end of the
// layer.
func TestLocalLayersAreChecked(t *testing.T) {
	dir := writeLayout(t, testImage(t))
	damageLayer(t, dir)
	c, err := resolveContainer(t.Context(), base{kind: baseOCI, arg: dir}, &Recipe{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.stream(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(),
		"damaged: layer has digest") {
		t.Errorf("%v", err)
	}
}

func TestBuildRefusesBadContainers(t *testing.T) {
	damaged := writeLayout(t, testImage(t))
	damageLayer(t, damaged)
	arm := testImage(t)
	arm, err := mutate.ConfigFile(arm, withConfig(t, arm, "linux", "arm64"))
	if err != nil {
		t.Fatal(err)
	}
	good := "oci:" + writeLayout(t, testImage(t))
	refuses := func(context.Context, Disk) error { return errors.New("layer 1: refused") }
	for what, c := range map[string]struct {
		base, want string
		fill       func(context.Context, Disk) error
	}{
		"damaged":      {"oci:" + damaged, "damaged: layer", (&builderVM{}).fill},
		"wrong tag":    {good + ":v2", "0 images", refuses},
		"not a layout": {"oci:" + t.TempDir(), "not an OCI layout", refuses},
		"no archive":   {"docker-archive:/nonexistent", "no such file", refuses},
		"wrong CPU":    {"docker-archive:" + writeDockerArchive(t, arm), "arm64", refuses},
		"refused":      {good, "layer 1: refused", refuses},
		"no VM":        {good, "start a daemon", nil},
	} {
		cache := t.TempDir()
		r := &Recipe{Name: "x", Base: c.base, DiskMiB: 64, MemoryMiB: 128, VCPUs: 1}
		_, err := Build(t.Context(), cache, r, Unpacker{Fill: c.fill}, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", what, err, c.want)
		}
		if entries, _ := os.ReadDir(imagesDir(cache)); len(entries) != 0 {
			t.Errorf("%s: left %v", what, entries)
		}
	}
}

// damageLayer flips a byte of a layer.
func damageLayer(t *testing.T, dir string) {
	t.Helper()
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs/sha256/*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, blob := range blobs {
		data, err := os.ReadFile(blob)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) { // gzip
			data[len(data)/2] ^= 1
			if err := os.WriteFile(blob, data, 0o600); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("no layer found")
}

// Uncompressed layers of an archive are passed on unchanged, even if links lead to them, as in
// archives of some versions of docker save. The content of the layers is checked.
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
		from, err := resolveContainer(t.Context(), base{kind: baseDockerArchive, arg: file}, &Recipe{})
		if err == nil {
			err = (&builderVM{}).fill(t.Context(), Disk{Path: filepath.Join(t.TempDir(), "disk"), MiB: 64, Stream: from.stream})
		}
		if (err != nil) != damaged || damaged && !strings.Contains(err.Error(), "damaged: layer has digest") {
			t.Errorf("damaged %v: got %v", damaged, err)
		}
	}
}
