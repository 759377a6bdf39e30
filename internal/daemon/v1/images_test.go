package v1_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/imageproto"
)

// layerOf returns a stream of package imageproto with one layer.
func layerOf(t *testing.T, layer string) *bytes.Buffer {
	t.Helper()
	var stream bytes.Buffer
	if err := errors.Join(imageproto.WriteHeader(&stream, imageproto.Header{Layers: make([]imageproto.Layer, 1)}),
		imageproto.WriteLayer(&stream, strings.NewReader(layer))); err != nil {
		t.Fatal(err)
	}
	return &stream
}

// unpacks stands in for a builder VM that expects the layer "content".
func unpacks(stream io.Reader) error {
	r := imageproto.NewReader(stream)
	if _, err := r.Header(); err != nil {
		return err
	}
	layer, err := io.ReadAll(r.Layer())
	if err == nil && string(layer) != "content" {
		err = fmt.Errorf("layer 1: archive entry %q: refused", layer)
	}
	return err
}

// nothingOfDisks fails the test if a builder VM or an unfinished disk remains.
func nothingOfDisks(t *testing.T, r *apirig.Rig) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); r.Unpacks.Count() > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d builder VMs are left", r.Unpacks.Count())
		}
	}
	if left, err := os.ReadDir(r.Scratch); err != nil || len(left) > 0 {
		t.Errorf("disks are left: %v, %v", left, err)
	}
}

const diskID = "01234567-89ab-8def-8123-456789abcdef"

func TestImagesBecomeDisks(t *testing.T) {
	r := start(t, apirig.Options{Unpack: unpacks})
	req := client.FillRequest{Kernel: r.Parent.Kernel, DiskMiB: 64, UUID: diskID}
	body, err := r.FillImage(t.Context(), req, layerOf(t, "content"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := errors.Join(imageproto.ReadDisk(f, body, 64<<20), body.Close()); err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 2048)
	if _, err := f.ReadAt(head, 0); err != nil || !bytes.Equal(head[1024+0x38:][:2], []byte{0x53, 0xef}) ||
		!bytes.HasPrefix(head[1024+0x68:], []byte("\x01\x23\x45\x67")) {
		t.Errorf("no ext4 file system with the requested UUID: %v", err)
	}
	nothingOfDisks(t, r)

	for range 20 { // a refused request leaves no bytes that the server would read as the next request
		_, err = r.FillImage(t.Context(), req, layerOf(t, "../evil"))
		if !client.IsStatus(err, http.StatusBadRequest) || !strings.Contains(err.Error(),
			`image: layer 1: archive entry "../evil": refused`) {
			t.Errorf("a refused image: %v", err)
		}
	}
	_, err = r.FillImage(t.Context(), req, strings.NewReader("\x00\x00\x00\x10"))
	if !client.IsStatus(err, http.StatusBadRequest) || !strings.Contains(err.Error(), "image: read header") {
		t.Errorf("something else than an image: %v", err)
	}
	nothingOfDisks(t, r)
}

func TestBadRequestsForDisks(t *testing.T) {
	r := start(t, apirig.Options{Unpack: unpacks, Tokens: []auth.Token{{Name: "runner", Scope: auth.Run}}})
	ask := func(token string, length int64, q url.Values) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.URL+"/v1/images?"+q.Encode(),
			io.MultiReader(layerOf(t, "content")))
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = length
		req.Header.Set("Content-Type", "application/octet-stream")
		req.Header.Set("Expect", "100-continue")
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	good := func(name, value string) url.Values {
		q := url.Values{"kernel": {r.Parent.Kernel}, "disk_mib": {"64"}, "uuid": {diskID}}
		q.Set(name, value)
		return q
	}
	for _, c := range []struct {
		name, value, want string
	}{
		{"disk_mib", "", `disk_mib: \"\": want the size of the disk as a number of MiB`},
		{"disk_mib", "many", "disk_mib: "}, {"disk_mib", "-1", "disk_mib: "},
		{"disk_mib", "5", "disk_mib: 5242880 bytes: want 16 to 1048576 MiB"},
		{"disk_mib", "9223372036854775807", "disk_mib: "},
		{"uuid", "", "uuid: "}, {"uuid", "0123", "want 32 hexadecimal digits"},
		{"kernel", "vmlinux", "want the absolute path of a file on the daemon's host"},
		{"kernel", "/nonexistent", "not a regular file on the daemon's host"}, {"kernel", "", "kernel: "},
		{"size", "5", "size"},
	} {
		status, text := ask(apirig.Token, -1, good(c.name, c.value))
		if status != http.StatusBadRequest || !strings.Contains(text, c.want) {
			t.Errorf("%s=%s: %d %s, want %q", c.name, c.value, status, text, c.want)
		}
	}
	if status, text := ask(r.Tokens["runner"], -1, good("uuid", diskID)); status != http.StatusForbidden {
		t.Errorf("a token of a lesser scope: %d %s", status, text)
	}
	if status, text := ask(apirig.Token, 1<<40, good("uuid", diskID)); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body of 1 TiB: %d %s", status, text)
	}
	if r.Unpacks.Spawned > 0 {
		t.Errorf("%d VMs were started", r.Unpacks.Spawned)
	}
	nothingOfDisks(t, r)
}

// If a client leaves while it sends an image, its builder VM and its disk are removed.
func TestClientsThatLeaveWhileTheySendAnImage(t *testing.T) {
	begun := make(chan struct{})
	r := start(t, apirig.Options{Unpack: func(stream io.Reader) error {
		close(begun)
		return unpacks(stream)
	}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in, out := io.Pipe()
	context.AfterFunc(ctx, func() { out.CloseWithError(ctx.Err()) })
	ended := make(chan error, 1)
	go func() {
		_, err := r.FillImage(ctx, client.FillRequest{Kernel: r.Parent.Kernel, DiskMiB: 64, UUID: diskID}, in)
		ended <- err
	}()
	if err := imageproto.WriteHeader(out, imageproto.Header{Layers: make([]imageproto.Layer, 1)}); err != nil {
		t.Fatal(err)
	}
	<-begun
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	nothingOfDisks(t, r)
}

// The VM and the disk are also removed if the client leaves while the VM reads nothing, or while
// the client waits for a VM.
func TestClientsThatLeaveWhileNothingIsRead(t *testing.T) {
	begun, release := make(chan struct{}, 1), make(chan struct{})
	r := start(t, apirig.Options{Unpack: func(io.Reader) error {
		begun <- struct{}{}
		<-release
		return nil
	}})
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 2)
	fill := func() {
		in, out := io.Pipe()
		context.AfterFunc(ctx, func() { out.CloseWithError(ctx.Err()) })
		go func() { _, _ = layerOf(t, "content").WriteTo(out) }() // without closing out
		_, err := r.FillImage(ctx, client.FillRequest{Kernel: r.Parent.Kernel, DiskMiB: 64, UUID: diskID}, in)
		ended <- err
	}
	go fill()
	<-begun
	go fill()
	time.Sleep(100 * time.Millisecond) // the second request probably waits by now
	cancel()
	for range cap(ended) {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
	nothingOfDisks(t, r)
}

func TestDisksNeedKVM(t *testing.T) {
	r := start(t, apirig.Options{Unpack: unpacks, NoKVM: &vmmclient.NoKVMError{Err: errors.New("no /dev/kvm here")}})
	_, err := r.FillImage(t.Context(), client.FillRequest{Kernel: r.Parent.Kernel, DiskMiB: 64, UUID: diskID},
		layerOf(t, "content"))
	if !client.IsStatus(err, http.StatusServiceUnavailable) || !strings.Contains(err.Error(), "no /dev/kvm here") {
		t.Errorf("%v", err)
	}
	if r.Unpacks.Spawned > 0 {
		t.Errorf("%d VMs were started", r.Unpacks.Spawned)
	}
}

// An image is not removed while a bake that uses it waits, or while it is unknown which image a
// snapshot needs.
func TestPruneKeepsWhatMayBeNeeded(t *testing.T) {
	r := start(t, apirig.Options{})
	dir := filepath.Join(r.Cache, "images", strings.Repeat("a", 32))
	rootfs := filepath.Join(dir, "rootfs.ext4")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(rootfs, make([]byte, 4096), 0o600)); err != nil {
		t.Fatal(err)
	}
	release := r.Steps.Hold(rootfs)
	if p, err := r.PruneImages(t.Context(), 0, false); err != nil || len(p.Removed) > 0 {
		t.Errorf("while a bake waits: %+v, %v", p, err)
	}
	release()
	bake := r.Parent
	bake.Rootfs = rootfs
	if _, err := r.Bake(t.Context(), bake); err != nil {
		t.Fatal(err)
	}
	records, err := filepath.Glob(filepath.Join(filepath.Dir(r.Cache), "state", "bases", "*.json"))
	if err != nil || len(records) == 0 {
		t.Fatalf("records of images: %v, %v", records, err)
	}
	for _, name := range records {
		if err := os.WriteFile(name, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if p, err := r.PruneImages(t.Context(), 0, false); !client.IsStatus(err, http.StatusConflict) {
		t.Errorf("with a damaged record: %+v, %v", p, err)
	}
}

// Clients can list the daemon's image cache, and remove the images that no build has used for the
// given time. If a snapshot is based on an image, the image stays.
func TestImageCache(t *testing.T) {
	r := start(t, apirig.Options{Tokens: []auth.Token{{Name: "runner", Scope: auth.Run}}})
	images := filepath.Join(r.Cache, "images")
	old := time.Now().Add(-48 * time.Hour)
	used, fresh := strings.Repeat("a", 32), strings.Repeat("b", 32)
	for _, name := range []string{used, strings.Repeat("c", 32), fresh} {
		dir := filepath.Join(images, name)
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "rootfs.ext4"),
			[]byte(strings.Repeat(name, 128)), 0o600), os.Chtimes(dir, old, old)); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	if err := os.Chtimes(filepath.Join(images, fresh), now, now); err != nil {
		t.Fatal(err)
	}
	bake := r.Parent
	bake.Rootfs = filepath.Join(images, used, "rootfs.ext4")
	if _, err := r.Bake(t.Context(), bake); err != nil {
		t.Fatal(err)
	}
	list, err := r.CachedImages(t.Context())
	if err != nil || len(list) != 3 || !list[0].InUse || list[1].InUse || list[0].Kind != "image" ||
		list[0].Dir != filepath.Join(images, used) || list[0].Bytes == 0 || list[0].UsedAt != old.Unix() {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, c := range []struct {
		unused time.Duration
		dry    bool
		want   int // number of removed images
		left   int
	}{{24 * time.Hour, true, 1, 3}, {24 * time.Hour, false, 1, 2}, {24 * time.Hour, false, 0, 2}, {0, false, 1, 1}} {
		p, err := r.PruneImages(t.Context(), c.unused, c.dry)
		left, failed := os.ReadDir(images)
		if err != nil || failed != nil || len(p.Removed) != c.want || p.DryRun != c.dry || len(left) != c.left {
			t.Errorf("%+v: %+v, %v, %v, left %v", c, p, err, failed, left)
		}
	}
	archive, err := r.PackSnapshot(t.Context(), r.Parent.Tag)
	if err != nil {
		t.Fatal(err)
	}
	archive.Close()
	list, err = r.CachedImages(t.Context())
	blobs := slices.DeleteFunc(list, func(c client.CachedImage) bool { return c.Kind != "blob" })
	if err != nil || !slices.ContainsFunc(blobs, func(c client.CachedImage) bool {
		return c.Detail == "base" && c.Bytes > 0 && !c.InUse && time.Since(time.Unix(c.UsedAt, 0)) < time.Hour
	}) {
		t.Errorf("%+v, %v", blobs, err)
	}
	for _, c := range []struct {
		unused time.Duration
		dry    bool
		want   int
	}{{24 * time.Hour, false, 0}, {0, true, len(blobs)}, {0, false, len(blobs)}, {0, false, 0}} {
		if p, err := r.PruneImages(t.Context(), c.unused, c.dry); err != nil || len(p.Removed) != c.want {
			t.Errorf("%+v: %+v, %v", c, p, err)
		}
	}
	runner, err := client.New(r.URL, r.Tokens["runner"])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := runner.CachedImages(t.Context()); !client.IsStatus(err, http.StatusForbidden) {
		t.Errorf("a token of a lesser scope: %v", err)
	}
	if _, err := r.PruneImages(t.Context(), -time.Second, true); !client.IsStatus(err, http.StatusBadRequest) ||
		!strings.Contains(err.Error(), "unused_secs: ") {
		t.Errorf("a negative time: %v", err)
	}
}
