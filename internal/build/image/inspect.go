package image

import (
	"context"
	"fmt"
	"strings"

	"github.com/forkd/forkd/internal/registry"
)

// Inspected holds the configuration of a container image that a build starts from.
type Inspected struct {
	// digest of the manifest for linux/amd64; it identifies the configuration, and the layers in
	// the form in which they are fetched
	Digest  string
	Env     map[string]string
	User    string
	Dir     string
	Shell   []string
	OnBuild []string
}

// Inspect fetches the configuration of an image for linux/amd64 from a registry. It does not fetch
// layers.
func Inspect(ctx context.Context, reference string, login *registry.Login) (Inspected, error) {
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

// Pinned returns a reference to the image with the digest that Inspect found, even if the name now
// refers to another image.
func Pinned(reference, digest string) string {
	name, _, _ := strings.Cut(reference, "@")
	return name + "@" + digest
}
