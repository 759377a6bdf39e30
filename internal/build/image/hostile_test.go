package image

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A registry's manifest says how much is read into memory: what is more than any image has is refused
// before a byte of it is asked for.
func TestManifestOfAHostileRegistry(t *testing.T) {
	const kind = "application/vnd.oci.image.manifest.v1+json"
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
				w.Header().Set("Content-Type", kind)
				layers := strings.TrimSuffix(strings.Repeat(layer+",", c.layers), ",")
				fmt.Fprintf(w, `{"schemaVersion":2,"mediaType":%q,"config":{"size":%d,"digest":%q},"layers":[%s]}`,
					kind, c.size, digest, layers)
			case strings.Contains(r.URL.Path, "/blobs/"):
				t.Errorf("%s: %s was asked for", name, r.URL.Path)
			}
		}))
		b, err := parseBase("docker://" + strings.TrimPrefix(s.URL, "http://") + "/x:1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := resolveContainer(t.Context(), b, ".", nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		s.Close()
	}
}
