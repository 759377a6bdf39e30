package image

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

const manifestType = "application/vnd.oci.image.manifest.v1+json"

// A registry's manifest determines how much is read into memory. Builds of recipes and Dockerfiles
// refuse excessive sizes before requesting any of that data.
func TestManifestOfAHostileRegistry(t *testing.T) {
	digest := fmt.Sprintf("sha256:%064d", 0)
	layer := fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.layer.v1.tar","size":1,"digest":%q}`, digest)
	for name, c := range map[string]struct {
		size   int64
		layers int
		want   string
	}{
		"configuration of many gigabytes": {1 << 40, 0, "the image's configuration has 1099511627776 bytes"},
		"configuration without a size":    {-1, 0, "has -1 bytes"},
		"many layers":                     {2, 5000, "the image has 5000 layers"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.Contains(r.URL.Path, "/manifests/"):
				w.Header().Set("Content-Type", manifestType)
				layers := strings.TrimSuffix(strings.Repeat(layer+",", c.layers), ",")
				fmt.Fprintf(w, `{"schemaVersion":2,"mediaType":%q,"config":{"size":%d,"digest":%q},"layers":[%s]}`,
					manifestType, c.size, digest, layers)
			case strings.Contains(r.URL.Path, "/blobs/"):
				t.Errorf("%s: %s was asked for", name, r.URL.Path)
			}
		}))
		reference := strings.TrimPrefix(s.URL, "http://") + "/x:1"
		if _, err := resolveContainer(t.Context(), base{baseRegistry, reference}, &Recipe{}); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if _, err := Inspect(t.Context(), reference, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, of a Dockerfile: %v, want %q", name, err, c.want)
		}
		s.Close()
	}
}

// The manifest itself is also read into memory, so its size is bounded, even if the registry
// redirects.
func TestLongManifest(t *testing.T) {
	var sent atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/manifests/moved"):
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		case strings.Contains(r.URL.Path, "/manifests/"), r.URL.Path == "/elsewhere":
			w.Header().Set("Content-Type", manifestType)
			fmt.Fprintf(w, `{"schemaVersion":2,"mediaType":%q,"layers":[{}`, manifestType)
			more := []byte(strings.Repeat(",{}", 1<<18))
			for range 80 {
				n, err := w.Write(more)
				if sent.Add(int64(n)); err != nil {
					return
				}
			}
			fmt.Fprint(w, "]}")
		}
	}))
	defer s.Close()
	for _, tag := range []string{"1", "moved"} {
		sent.Store(0)
		_, err := Inspect(t.Context(), strings.TrimPrefix(s.URL, "http://")+"/x:"+tag, nil)
		if err == nil || !strings.Contains(err.Error(), "manifest has more than 4194304 bytes") {
			t.Errorf("a manifest of 60 MiB: %v", err)
		}
		if n := sent.Load(); n > 5*maxRegistryManifest { // n includes data in socket buffers
			t.Errorf("%d MiB of it were taken", n>>20)
		}
	}
}
