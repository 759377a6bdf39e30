package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// needTools skips the test if the host cannot create file systems: without e2fsprogs, or without
// root and subordinate ids.
func needTools(t *testing.T) {
	t.Helper()
	if err := requireFor(t.Context(), &Recipe{Base: "oci:x"}); err != nil {
		t.Skipf("skipped, cannot build images here: %v", err)
	}
}

// containerOf makes an image with an environment and one layer per archive.
func containerOf(t *testing.T, layers ...[]byte) v1.Image {
	t.Helper()
	img := v1.Image(empty.Image)
	for _, l := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(l)), nil })
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

func debugfs(t *testing.T, fs, command string) string {
	t.Helper()
	out, err := exec.Command("/usr/sbin/debugfs", "-R", command, fs).Output()
	if err != nil {
		t.Fatalf("debugfs %s: %v", command, err)
	}
	return string(out)
}

func TestBuildFromContainers(t *testing.T) {
	needTools(t)
	img := testImage(t)
	dirOfLayout := writeLayout(t, img)
	for _, base := range []string{
		"oci:" + dirOfLayout, "oci:" + dirOfLayout + ":v1", "docker-archive:" + writeDockerArchive(t, img),
		"docker://" + pushToRegistry(t, img),
	} {
		kind, _, _ := strings.Cut(base, ":")
		t.Run(kind, func(t *testing.T) {
			cache := t.TempDir()
			r := &Recipe{Name: "x", Base: base, DiskMiB: 64, MemoryMiB: 128, VCPUs: 1, Env: map[string]string{"LANG": "C.UTF-8"},
				files: []overlayFile{
					{name: "etc/motd", typ: tar.TypeReg, mode: 0o604, data: []byte("hello")},
					{name: "srv/app/empty", typ: tar.TypeDir, mode: 0o755},
					{name: "srv/app/link", typ: tar.TypeSymlink, link: "../x"},
				}}
			built, err := Build(t.Context(), cache, r, nil)
			if err != nil {
				t.Fatal(err)
			}
			checkContent(t, built)
			if env := r.EnvOver(built.Env); env["PATH"] != "/usr/bin" || env["LANG"] != "C.UTF-8" || len(env) != 2 {
				t.Errorf("environment %v", env)
			}
			if got := names(t, imagesDir(cache)); len(got) != 1 {
				t.Errorf("left in the cache: %q", got)
			}
			other := *r // fields that the file system does not depend on
			other.Name, other.Description, other.MemoryMiB, other.VCPUs = "y", "d", 256, 2
			other.Warmup, other.Env = Warmup{Python: "x"}, map[string]string{"LANG": "C"}
			again, err := Build(t.Context(), cache, &other, func(s Step) {
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

func checkContent(t *testing.T, img *Image) {
	t.Helper()
	if out, err := exec.Command("/usr/sbin/e2fsck", "-fn", img.Rootfs()).CombinedOutput(); err != nil {
		t.Fatalf("e2fsck: %v\n%s", err, out)
	}
	for path, want := range map[string][]string{
		"/etc/kept":    {"Mode:  0640", "Size: 5"},
		"/home/user/f": {"Mode:  0600", "User:  1000   Group:  1001"},
		"/bin/alias":   {"Links: 2"},
		"/lib":         {"Type: symlink", `"usr/lib"`},
		"/opaque/new":  {"Type: regular"},
		"/etc/motd":    {"Mode:  0604", "User:     0   Group:     0", "Size: 5"},
		"/":            {"Mode:  0755"},

		"/srv/app":       {"Type: directory", "Mode:  0755"},
		"/srv/app/empty": {"Type: directory"},
		"/srv/app/link":  {"Type: symlink", `"../x"`},

		// Files that programs expect and this base lacks.
		"/etc/passwd":     {"Mode:  0644"},
		"/etc/group":      {"Mode:  0644"},
		"/etc/hosts":      {"Mode:  0644"},
		"/etc/machine-id": {"Mode:  0444", "Size: 0"},
		"/root":           {"Type: directory", "Mode:  0700"},
	} {
		out := debugfs(t, img.Rootfs(), "stat "+path)
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%s: no %q in:\n%s", path, w, out)
			}
		}
	}
	for _, path := range []string{"/etc/deleted", "/gone", "/opaque/old", "/etc/.wh.deleted"} {
		if out := debugfs(t, img.Rootfs(), "stat "+path); strings.Contains(out, "Inode:") {
			t.Errorf("%s is there", path)
		}
	}
	if out := debugfs(t, img.Rootfs(), "stats"); strings.Contains(out, "has_journal") ||
		!strings.Contains(out, "Block size:               4096") {
		t.Errorf("file system parameters:\n%s", out)
	}
	if err := img.Verify(); err != nil {
		t.Error(err)
	}
}

func TestBuildRefusesBadContainers(t *testing.T) {
	needTools(t)
	damaged := writeLayout(t, testImage(t))
	damageLayer(t, damaged)
	arm := testImage(t)
	arm, err := mutate.ConfigFile(arm, withConfig(t, arm, "linux", "arm64"))
	if err != nil {
		t.Fatal(err)
	}
	many := make([]tar.Header, 9000) // a file system of 64 MiB has 8192 inodes
	for i := range many {
		many[i] = reg(fmt.Sprintf("f%d", i))
	}
	for what, c := range map[string]struct{ base, want string }{
		"too many files": {"oci:" + writeLayout(t, containerOf(t, archive(t, many...))), "raise disk_mib"},
		"parent":         {"oci:" + writeLayout(t, containerOf(t, archive(t, reg("../../evil")))), "unsafe"},
		"too large": {"oci:" + writeLayout(t, containerOf(t, archive(t,
			tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Size: 70 << 20}))), "raise disk_mib"},
		"damaged":      {"oci:" + damaged, "damaged: layer"},
		"wrong tag":    {"oci:" + writeLayout(t, testImage(t)) + ":v2", "0 images"},
		"not a layout": {"oci:" + t.TempDir(), "not an OCI layout"},
		"no archive":   {"docker-archive:/nonexistent", "no such file"},
		"wrong CPU":    {"docker-archive:" + writeDockerArchive(t, arm), "arm64"},
	} {
		cache := t.TempDir()
		r := &Recipe{Name: "x", Base: c.base, DiskMiB: 64, MemoryMiB: 128, VCPUs: 1}
		_, err := Build(t.Context(), cache, r, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", what, err, c.want)
		}
		if entries, _ := os.ReadDir(imagesDir(cache)); len(entries) != 0 {
			t.Errorf("%s: left %v", what, entries)
		}
	}
}

// A file behind a symbolic link is refused, or dropped where the layers are flattened. The build
// never follows the link.
func TestBuildDoesNotFollowLinks(t *testing.T) {
	needTools(t)
	outside := t.TempDir()
	for what, layers := range map[string][][]byte{
		"one layer":  {archive(t, sym("x", outside), reg("x/evil"))},
		"two layers": {archive(t, sym("x", outside)), archive(t, reg("x/evil"))},
		"reversed":   {archive(t, reg("x/evil")), archive(t, sym("x", outside))},
	} {
		r := &Recipe{Name: "x", Base: "oci:" + writeLayout(t, containerOf(t, layers...)), DiskMiB: 64, MemoryMiB: 128,
			VCPUs: 1}
		_, err := Build(t.Context(), t.TempDir(), r, nil)
		t.Logf("%s: %v", what, err)
		if got := names(t, outside); len(got) != 0 {
			t.Errorf("%s: written outside: %q", what, got)
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

func TestExtractReportsTheFirstCause(t *testing.T) {
	needTools(t)
	boom := errors.New("boom")
	for what, c := range map[string]struct {
		source func(ctx context.Context, w io.Writer) error
		want   string
	}{
		"source fails at once": {func(context.Context, io.Writer) error { return boom }, "boom"},
		"source fails late": {func(_ context.Context, w io.Writer) error {
			_, err := w.Write(archive(t, reg("a"))[:512])
			return errors.Join(err, boom)
		}, "boom"},
		"source fails after a whole archive": {func(_ context.Context, w io.Writer) error {
			_, err := w.Write(archive(t, reg("a")))
			return errors.Join(err, boom)
		}, "boom"},
		"filter refuses": {func(ctx context.Context, w io.Writer) error {
			if _, err := w.Write(archive(t, reg("../a"), reg("b"))); err != nil {
				return fmt.Errorf("broken pipe: %w", err)
			}
			return nil
		}, "leaves the archive"},
		"tar fails": {func(_ context.Context, w io.Writer) error {
			_, err := w.Write(archive(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: strings.Repeat("x", 5000)}))
			return err
		}, "too long"},
	} {
		err := extract(t.Context(), t.TempDir(), &tarFilter{maxBytes: 1 << 20}, c.source)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", what, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := extract(ctx, t.TempDir(), &tarFilter{maxBytes: 1 << 20}, func(ctx context.Context, _ io.Writer) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
