package integration_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	ociv1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/forkd/forkd/client"
)

// entry is an entry of a layer. A name with a slash at its end is a directory.
type entry struct {
	name, text, link string
	hard             bool // the entry is a hard link to the path link
	head             tar.Header
}

func layerOf(t *testing.T, list ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range list {
		h := e.head
		h.Name, h.Linkname = e.name, e.link
		if h.Size == 0 {
			h.Size = int64(len(e.text))
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		switch {
		case h.Typeflag != 0:
		case e.hard:
			h.Typeflag = tar.TypeLink
		case e.link != "":
			h.Typeflag = tar.TypeSymlink
		case strings.HasSuffix(e.name, "/"):
			h.Typeflag = tar.TypeDir
		default:
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.text); err != nil {
			t.Fatal(err)
		}
	}
	_ = w.Close() // fails for an entry that lies about its size
	return out.Bytes()
}

func imageOf(t *testing.T, layers ...[]byte) ociv1.Image {
	t.Helper()
	img := ociv1.Image(empty.Image)
	for _, l := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(l)), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatal(err)
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config.Env = []string{"PATH=/bin:/usr/bin", "OF_IMAGE=yes"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

// push puts an image into a registry.
func push(t *testing.T, url, repository string, img ociv1.Image) (reference string) {
	t.Helper()
	reference = strings.TrimPrefix(url, "http://") + "/" + repository + ":1"
	ref, err := name.ParseReference(reference)
	if err == nil {
		err = remote.Write(ref, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return reference
}

// busyboxImage has busybox as its only program, and a second layer that removes, replaces and adds files.
func busyboxImage(t *testing.T, f *fixture) ociv1.Image {
	t.Helper()
	program, err := os.ReadFile(f.assets.Busybox)
	if err != nil {
		t.Fatal(err)
	}
	first := []entry{{name: "bin/"}, {name: "bin/busybox", text: string(program)}, {name: "etc/"},
		{name: "etc/passwd", text: "root:x:0:0:root:/root:/bin/sh\n", head: tar.Header{Mode: 0o644}},
		{name: "tmp/", head: tar.Header{Mode: 0o1777}}, {name: "gone", text: "x"}, {name: "opaque/old", text: "x"},
		{name: "null", head: tar.Header{Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3, Mode: 0o666}},
		{name: "owned", text: "x", head: tar.Header{Mode: 0o4711, Uid: 7, Gid: 8}},
		{name: "sparse", text: strings.Repeat("\x00", 4<<20) + "end"}}
	for _, applet := range []string{"sh", "cat", "id", "ls", "test", "stat", "mkdir", "rm", "tar", "env", "pwd",
		"touch", "du", "cut",
		"sleep", "head", "mount", "umount", "find", "echo", "true", "cp", "chmod", "sync"} {
		first = append(first, entry{name: "bin/" + applet, link: "bin/busybox", hard: true})
	}
	return imageOf(t, layerOf(t, first...), layerOf(t, entry{name: ".wh.gone"}, entry{name: "opaque/new", text: "x"},
		entry{name: "opaque/.wh..wh..opq"}, entry{name: "etc/motd", text: "second\n", head: tar.Header{Mode: 0o644}}))
}

// wantBusybox checks a fork of busyboxImage.
const wantBusybox = "ls /gone /opaque/old 2>&1 | cut -d: -f3; ls /opaque; cat /etc/motd; stat -c '%a %u:%g' /owned; " +
	"stat -c %t:%T /null; du -k /sparse | cut -f1; stat -c %h /bin/sh; id -u user; echo $OF_IMAGE"

const haveBusybox = " No such file or directory\n No such file or directory\nnew\nsecond\n4711 7:8\n1:3\n4\n25\n1000\nyes\n"

// TestImagesOfRegistries builds from a Dockerfile that begins with an image of a registry. The
// daemon can use neither mke2fs nor a user namespace, so a VM unpacks the image. Hostile images are
// refused, and leave neither a VM nor a file.
func TestImagesOfRegistries(t *testing.T) {
	f := load(t)
	d := f.start(t, withChecks)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	reference := push(t, server.URL, "busybox", busyboxImage(t, f))
	req := client.BuildRequest{Tag: "busybox",
		Dockerfile: "FROM " + reference + "\nRUN test ! -e /gone && touch /built\n",
		DiskMiB:    256, MemoryMiB: 192}
	r, log, err := d.buildFile(d.ctx(t, 2*bakeLimit), req, nil)
	if err != nil || r.Run == 0 {
		t.Fatalf("%+v, %v\n%s", r, err, log)
	}
	t.Logf("%s", log)
	box := d.forkOf(t, "busybox", 1)[0].ID
	if got := d.sh(t, box, wantBusybox); got != haveBusybox {
		t.Errorf("a fork has %q,\nwant %q", got, haveBusybox)
	}
	if err := d.Kill(d.ctx(t, quietLimit), box); err != nil {
		t.Error(err)
	}
	d.dropBuilt(t, "busybox")

	// Each image boots a VM. TestHostileLayers of internal/guest/unpack has many more images, without VMs.
	content := strings.Repeat("x", 40<<20)
	images := d.cachedImages(t)
	for what, c := range map[string]struct {
		layers [][]byte
		want   string
	}{
		"a path through a link": {[][]byte{layerOf(t, entry{name: "a", link: "/tmp"}), layerOf(t,
			entry{name: "a/evil"})},
			"layer 2: archive entry \\\"a/evil\\\": the path \\\"a\\\" passes through a symbolic link"},
		"a bomb": {[][]byte{make([]byte, 200<<20)}, "decompresses to much more than the disk holds"},
		"too much content": {[][]byte{layerOf(t, entry{name: "a", text: content}, entry{name: "b", text: content})},
			"raise disk_mib"},
	} {
		reference := push(t, server.URL, "hostile", imageOf(t, c.layers...))
		req := client.BuildRequest{Tag: "hostile", Dockerfile: "FROM " + reference + "\n", DiskMiB: 64, MemoryMiB: 192}
		begin := time.Now()
		_, _, err := d.buildFile(d.ctx(t, 2*bakeLimit), req, nil)
		t.Logf("%s: %v", what, time.Since(begin))
		if !client.IsStatus(err, http.StatusBadRequest) || !strings.Contains(fmt.Sprintf("%q", err.Error()), c.want) {
			t.Errorf("%s: %v, want 400 with %q", what, err, c.want)
		}
	}
	d.nothingOfImages(t, images)
}

// imageCache is the daemon's cache of images, below its state directory. The first image creates
// the cache.
const imageCache = "image-cache/images"

// cachedImages returns the number of files in the daemon's cache of images.
func (d *daemon) cachedImages(t *testing.T) int {
	t.Helper()
	return len(tree(t, filepath.Join(d.state, imageCache)))
}

// nothingOfImages fails if a VM, or a file of an unfinished image, remains. The cache must hold the
// given number of files.
func (d *daemon) nothingOfImages(t *testing.T, files int) {
	t.Helper()
	if left := tree(t, filepath.Join(d.run, "vm")); slices.ContainsFunc(left, func(s string) bool {
		return strings.Contains(s, "base")
	}) {
		t.Errorf("left of VMs: %q", left)
	}
	for dir, want := range map[string]int{"scratch": 0, imageCache: files} {
		if left := tree(t, filepath.Join(d.state, dir)); len(left) != want {
			t.Errorf("%s: %q, want %d files", dir, left, want)
		}
	}
}

// TestLocalImage runs `forkd build oci:DIR`, which sends the layers to the daemon and receives the
// disk. The guest kernel has no modules.
func TestLocalImage(t *testing.T) {
	f := load(t)
	d := f.start(t)
	images := d.cachedImages(t)
	dir := filepath.Join(t.TempDir(), "layout")
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(busyboxImage(t, f)); err != nil {
		t.Fatal(err)
	}
	recipe := t.TempDir()
	text := "name: local\nbase: oci:" + dir + "\nuser: true\ndisk_mib: 256\nmemory_mib: 192\nfiles:\n  - {source: tool, target: /bin/tool}\n"
	for name, text := range map[string]string{"recipe.yaml": text, "tool": "#!/bin/sh\necho tool\n"} {
		if err := os.WriteFile(filepath.Join(recipe, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cache := t.TempDir()
	build := func(args ...string) (string, error) {
		cmd := exec.CommandContext(d.ctx(t, 2*bakeLimit), f.program, append([]string{"build", "--kernel",
			f.assets.Minimal.VMLinux}, args...)...)
		cmd.Env = append(os.Environ(), "FORKD_CACHE="+cache, "FORKD_URL=unix://"+filepath.Join(d.run, "forkd.sock"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := build(recipe); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	box := d.forkOf(t, "local", 1)[0].ID
	if got := d.sh(t, box, wantBusybox+"; tool"); got != haveBusybox+"tool\n" {
		t.Errorf("a fork has %q,\nwant %q", got, haveBusybox+"tool\n")
	}
	if err := d.Kill(d.ctx(t, quietLimit), box); err != nil {
		t.Error(err)
	}
	if err := d.DeleteSnapshot(d.ctx(t, quietLimit), "local", client.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if e2fsck, err := exec.LookPath("e2fsck"); err == nil {
		disks, _ := filepath.Glob(filepath.Join(cache, "images", "*", "rootfs.ext4"))
		for _, disk := range disks {
			if out, err := exec.Command(e2fsck, "-fn", disk).CombinedOutput(); err != nil {
				t.Errorf("e2fsck: %v\n%s", err, out)
			}
		}
	}
	hostile := filepath.Join(t.TempDir(), "hostile")
	if p, err = layout.Write(hostile, empty.Index); err == nil {
		err = p.AppendImage(imageOf(t, layerOf(t, entry{name: "zeros", text: strings.Repeat("x", 30<<20)},
			entry{name: "../evil"},
			entry{name: "more", text: strings.Repeat("x", 30<<20)})))
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := build("oci:"+hostile, "--tag", "hostile"); err == nil || !strings.Contains(out,
		"the name leaves the image") {
		t.Errorf("a hostile image: %v\n%s", err, out)
	}
	if left := tree(t, filepath.Join(cache, "images")); len(left) != 3 {
		t.Errorf("in the client's cache: %q, want one image", left)
	}
	d.nothingOfImages(t, images)
}

// TestDaemonCrashWhileUnpacking kills the daemon while it receives a layer. The next daemon kills
// the VM, and no file of the image remains.
func TestDaemonCrashWhileUnpacking(t *testing.T) {
	f := load(t)
	d := f.start(t)
	images := d.cachedImages(t)
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	begun, release := make(chan struct{}), make(chan struct{})
	img := busyboxImage(t, f)
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	first, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, first.String()) {
			body, err := layers[0].Compressed()
			if err == nil {
				_, _ = io.CopyN(w, body, 300<<10)
				body.Close()
			}
			close(begun)
			<-release
			return
		}
		inner.ServeHTTP(w, r)
	}))
	defer server.Close()
	defer close(release)
	req := client.BuildRequest{Tag: "half", Dockerfile: "FROM " + push(t, server.URL, "busybox", img) + "\n",
		DiskMiB:   256,
		MemoryMiB: 192}
	ended := make(chan error, 1)
	ctx := d.ctx(t, 2*bakeLimit)
	go func() {
		_, _, err := d.buildFile(ctx, req, nil)
		ended <- err
	}()
	select {
	case <-begun:
	case err := <-ended:
		t.Fatalf("the build has ended: %v", err)
	}
	if n := len(d.vmms(t)); n == 0 {
		t.Error("no VM unpacks the layer")
	}
	d.crash(t)
	if err := <-ended; err == nil {
		t.Error("the build has a result although its daemon was killed")
	}
	d.launch(t)
	d.nothingOfImages(t, images)
	if left := tree(t, filepath.Join(d.run, "vm")); len(left) > 0 {
		t.Logf("VMs of the next daemon: %q", left)
	}
	if _, err := d.Snapshot(d.ctx(t, quietLimit), "half"); !client.IsNotFound(err) {
		t.Errorf("there is a result: %v", err)
	}
}
