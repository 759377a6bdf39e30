package image

import (
	"context"
	"fmt"
	"strings"
)

// Inspected is what the configuration of a container image says to a build that begins with it.
type Inspected struct {
	Digest  string // of the manifest for linux/amd64, which covers the configuration and the layers as they are fetched
	Env     map[string]string
	User    string
	Dir     string
	Shell   []string
	OnBuild []string
}

// Inspect asks a registry for the configuration of an image for linux/amd64. Layers are not fetched.
func Inspect(ctx context.Context, reference string, login *Login) (Inspected, error) {
	img, err := openRegistry(ctx, reference, login)
	if err != nil {
		return Inspected{}, fmt.Errorf("image %s: %w", reference, err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return Inspected{}, fmt.Errorf("image %s: read configuration: %w", reference, err)
	}
	if config.OS != "" && config.OS != "linux" || config.Architecture != "" && config.Architecture != "amd64" {
		return Inspected{}, fmt.Errorf("image %s is for %s/%s, not linux/amd64", reference, config.OS, config.Architecture)
	}
	digest, err := img.Digest()
	if err != nil {
		return Inspected{}, fmt.Errorf("image %s: %w", reference, err)
	}
	c := config.Config
	return Inspected{Digest: digest.String(), Env: envOf(c.Env), User: c.User, Dir: c.WorkingDir, Shell: c.Shell,
		OnBuild: c.OnBuild}, nil
}

// Pinned returns a reference to the image that a name had when Inspect found its digest.
func Pinned(reference, digest string) string {
	name, _, _ := strings.Cut(reference, "@")
	return name + "@" + digest
}
