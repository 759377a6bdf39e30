package image

import "testing"

func TestContainerImagesAreRecipes(t *testing.T) {
	for _, c := range []struct{ text, name string }{
		{"docker://python:3.12-slim", "python-3.12-slim"},
		{"docker://registry.example.org:5000/a/B@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
			"b"},
		{"docker-archive:/tmp/mine.tar", "mine"},
		{"oci:layout:v1", "layout-v1"},
		{"debian:bookworm", ""},
		{"python-numpy", ""},
	} {
		r, ok, err := FromContainer(c.text)
		if err != nil || ok != (c.name != "") || ok && (r.Name != c.name || r.Base != c.text || r.MemoryMiB == 0) {
			t.Errorf("%s: %+v, %v, %v", c.text, r, ok, err)
		}
	}
}
