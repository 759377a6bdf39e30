package image

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// If a registry serves an image with the public configuration of another image but with other
// layers, the image is not mistaken for the other image. A Dockerfile build identifies the two
// images by different digests, and the layers are refused.
func TestConfigurationOfAnotherImage(t *testing.T) {
	official := containerOf(t, archive(t, dir("etc"), reg("etc/official")))
	hostile := containerOf(t, archive(t, dir("etc"), reg("etc/hostile")))
	forged := pushForged(t, hostile, official)
	a, err := Inspect(t.Context(), pushToRegistry(t, official), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Inspect(t.Context(), forged, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a.Digest == b.Digest {
		t.Errorf("both images have digest %s", a.Digest)
	}
	c, err := resolveContainer(t.Context(), base{baseRegistry, forged}, &Recipe{})
	if err != nil {
		t.Fatal(err)
	}
	if c.digest != b.Digest {
		t.Errorf("its key has the digest %s, want that of the manifest, %s", c.digest, b.Digest)
	}
	if err := (&builderVM{}).fill(t.Context(), Disk{Stream: c.stream}); err == nil ||
		!strings.Contains(err.Error(), "damaged: layer 1 has digest") {
		t.Errorf("its layers do not come with the digests of its configuration: %v", err)
	}
	forged = pushForged(t, containerOf(t, archive(t, reg("a")), archive(t, reg("b"))), official)
	if c, err = resolveContainer(t.Context(), base{baseRegistry, forged}, &Recipe{}); err != nil {
		t.Fatal(err)
	}
	err = c.stream(t.Context(), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "2 layers, its configuration names 1") {
		t.Errorf("a layer too many is written: %v", err)
	}
}

// A build fetches the image that was planned, even if the image's name now refers to another image.
func TestPinned(t *testing.T) {
	before := containerOf(t, archive(t, reg("before")))
	reference := pushToRegistry(t, before)
	i, err := Inspect(t.Context(), reference, nil)
	if err != nil {
		t.Fatal(err)
	}
	pinned := Pinned(reference, i.Digest)
	if again := Pinned(pinned, i.Digest); again != pinned {
		t.Errorf("pinned again, %s is %s", pinned, again)
	}
	if err := push(reference, containerOf(t, archive(t, reg("after")))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{reference: "after", pinned: "before"} {
		c, err := resolveContainer(t.Context(), base{baseRegistry, name}, &Recipe{})
		if err != nil {
			t.Fatal(err)
		}
		v := &builderVM{}
		err = v.fill(t.Context(), Disk{Path: filepath.Join(t.TempDir(), "disk"), MiB: 64, Stream: c.stream})
		if err != nil || !bytes.Contains(v.layers[0], []byte(want)) {
			t.Errorf("%s does not have the file %s: %v", name, want, err)
		}
	}
}

// pushForged pushes an image with the configuration of another image, and returns its name.
func pushForged(t *testing.T, img, of v1.Image) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	put := func(method, path, kind string, body []byte) {
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", kind)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			t.Fatalf("%s: %s", path, resp.Status)
		}
	}
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	m = m.DeepCopy()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range layers {
		r, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		put(http.MethodPost, "/v2/x/blobs/uploads/?digest="+m.Layers[i].Digest.String(), "application/octet-stream",
			content)
	}
	config, err := of.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if m.Config.Digest, m.Config.Size, err = v1.SHA256(bytes.NewReader(config)); err != nil {
		t.Fatal(err)
	}
	put(http.MethodPost, "/v2/x/blobs/uploads/?digest="+m.Config.Digest.String(), "application/octet-stream", config)
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	put(http.MethodPut, "/v2/x/manifests/1", string(m.MediaType), text)
	return strings.TrimPrefix(server.URL, "http://") + "/x:1"
}
