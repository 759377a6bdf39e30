package image

import (
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// A registry's image provides the initial settings of a build; an image for another architecture is
// refused.
func TestInspect(t *testing.T) {
	image := func(arch string) v1.Image {
		img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: arch, Config: v1.Config{
			Env: []string{"PATH=/bin", "A=b=c", "not a variable"}, User: "app:app", WorkingDir: "/app",
			Shell: []string{"/bin/ash", "-c"}, OnBuild: []string{"RUN x"}}})
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	img := image("amd64")
	got, err := Inspect(t.Context(), pushToRegistry(t, img), nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got.Digest != want.String() || len(got.Env) != 2 || got.Env["A"] != "b=c" || got.User != "app:app" ||
		got.Dir != "/app" || got.Shell[0] != "/bin/ash" || got.OnBuild[0] != "RUN x" {
		t.Errorf("the image says %+v", got)
	}
	if _, err := Inspect(t.Context(), pushToRegistry(t, image("arm64")), nil); err == nil ||
		!strings.Contains(err.Error(), "linux/arm64") {
		t.Errorf("an image for another machine: %v", err)
	}
	reference := pushToRegistry(t, img)
	if _, err := Inspect(t.Context(), strings.Replace(reference, ":v1", ":v2", 1), nil); err == nil {
		t.Error("an image that is not there is found")
	}
}
