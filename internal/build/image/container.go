package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/imageproto"
	"github.com/forkd/forkd/internal/registry"
)

// refNameAnnotation names an image inside an OCI layout (OCI image spec, annotations.md).
const refNameAnnotation = "org.opencontainers.image.ref.name"

// maxIndexDepth is the maximum nesting of indexes in an OCI layout. In practice there is one level.
const maxIndexDepth = 3

// resolveContainer finds a container image for linux/amd64. It fetches the manifest from a
// registry, so that a moved tag gives another digest and another key. Layers are read when the
// content is written. Relative paths start at the recipe's directory. Only the environment of the
// image's configuration is used, because a sandbox starts the agent and not an entrypoint.
func resolveContainer(ctx context.Context, b base, r *Recipe) (_ *content, err error) {
	ctx, abort := context.WithCancel(ctx) // the library keeps this context for its requests to the registry
	defer func() {
		if err != nil {
			abort()
		}
	}()
	var img v1.Image
	plain := false
	switch b.kind {
	case baseOCI:
		img, err = openLayout(b.arg, r.dir)
	case baseDockerArchive:
		img, plain, err = openArchive(absolute(r.dir, b.arg))
	case baseRegistry:
		img, err = openRegistry(ctx, b.arg, r.Login)
	}
	if err == nil && b.kind == baseOCI { // for an archive, openArchive counts the layers
		err = checkManifest(img)
	}
	if err != nil {
		return nil, fmt.Errorf("base %s:%s: %w", b.kind, b.arg, err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("base %s:%s: read configuration: %w", b.kind, b.arg, err)
	}
	if config.OS != "" && config.OS != "linux" || config.Architecture != "" && config.Architecture != "amd64" {
		return nil, fmt.Errorf(
			"base %s:%s is for %s/%s, not linux/amd64",
			b.kind,
			b.arg,
			config.OS,
			config.Architecture,
		)
	}
	// For an image of a registry, the digest of the manifest identifies the layers in the form in
	// which they are fetched. For a local image, the digest of the configuration identifies the
	// content of the layers. The manifest of an archive would be known only after compressing its
	// layers.
	digest, err := img.Digest()
	if b.kind != baseRegistry {
		digest, err = checkConfig(img)
	}
	if err != nil {
		return nil, fmt.Errorf("base %s:%s: %w", b.kind, b.arg, err)
	}
	env := envOf(config.Config.Env)
	if err := snapshot.CheckEnv(env); err != nil { // a snapshot of the image must have this environment
		return nil, fmt.Errorf("base %s:%s: %w", b.kind, b.arg, err)
	}
	return &content{
		digest: digest.String(),
		env:    env,
		stream: func(ctx context.Context, w io.Writer) error {
			stop := context.AfterFunc(ctx, abort)
			defer stop()
			layers, err := layersOf(img, b.kind, plain)
			if err != nil {
				return err
			}
			return writeStream(ctx, w, r, layers...)
		},
	}, nil
}

// envOf returns the environment of an image's configuration, without variables that have an invalid
// name.
func envOf(list []string) map[string]string {
	env := make(map[string]string)
	for _, kv := range list {
		if k, v, ok := strings.Cut(kv, "="); ok && envPattern.MatchString(k) {
			env[k] = strings.ToValidUTF8(v, "\uFFFD")
		}
	}
	return env
}

// Bounds of a manifest. Docker makes at most 127 layers, and configurations of a few KiB.
// Registries need not store manifests above 4 MiB (OCI distribution spec, "Pushing Manifests").
const (
	maxRegistryManifest = 4 << 20
	maxArchiveManifest  = 1 << 20 // manifest.json of a docker save archive: names of layers, and tags
	maxConfigBytes      = 4 << 20
	maxLayers           = 1000
)

// checkManifest returns an error if the manifest declares too many layers, or a configuration that
// is too large. The configuration is read into memory, but never beyond its declared size.
func checkManifest(img v1.Image) error {
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	if n := m.Config.Size; n < 0 || n > maxConfigBytes {
		return fmt.Errorf("the manifest says that the image's configuration has %d bytes: at most %d are read", n,
			maxConfigBytes)
	}
	if n := len(m.Layers); n > maxLayers {
		return fmt.Errorf("the image has %d layers: at most %d are read", n, maxLayers)
	}
	return nil
}

// layersOf returns the layers of an image as sources of a stream. It does not parse them. If plain
// is true, the sources are not compressed.
//
// The library compares layers of a registry with their digests in the manifest while the layers
// arrive. For a local image, layersOf makes this comparison. For an OCI layout, it uses the digests
// of the layers in the manifest. An archive of docker save has no such digests. If plain is set,
// layers of such an archive are compared with the digests of their content. Later, forkd-unpack
// compares all layers with their digests in the configuration, so that an image cannot claim the
// configuration of another image.
func layersOf(img v1.Image, kind string, plain bool) ([]source, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	diffs, err := diffIDs(img, len(layers))
	if err != nil {
		return nil, err
	}
	var list []source
	for i, layer := range layers {
		s := source{Layer: imageproto.Layer{DiffID: diffs[i].String()}, name: fmt.Sprintf("layer %d", i+1),
			open: layer.Compressed}
		if plain { // the method Compressed would compress the layer first
			s.open = checked(layer.Uncompressed, diffs[i])
		} else if kind == baseOCI {
			digest, err := layer.Digest()
			if err != nil {
				return nil, err
			}
			s.open = checked(layer.Compressed, digest)
		}
		list = append(list, s)
	}
	return list, nil
}

// checked returns a function that opens the same content as open(). When the content has been read
// to its end, the reader compares its digest with want.
func checked(open func() (io.ReadCloser, error), want v1.Hash) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		from, err := open()
		return &checkedReader{from, want, sha256.New()}, err
	}
}

type checkedReader struct {
	io.ReadCloser
	want v1.Hash
	sum  hash.Hash
}

func (c *checkedReader) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.sum.Write(p[:n])
	if errors.Is(err, io.EOF) {
		if got := (v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(c.sum.Sum(nil))}); got != c.want {
			err = fmt.Errorf("the container image is damaged: layer has digest %v, not %v", got, c.want)
		}
	}
	return n, err
}

// checkConfig compares a local image's configuration with its digest, and returns the digest.
func checkConfig(img v1.Image) (want v1.Hash, err error) {
	config, err := img.RawConfigFile()
	if err != nil {
		return want, err
	}
	if want, err = img.ConfigName(); err != nil {
		return want, err
	}
	if sum, _, err := v1.SHA256(bytes.NewReader(config)); err != nil || sum != want {
		return want, fmt.Errorf("the container image is damaged: its configuration has digest %v, not %v", sum, want)
	}
	return want, nil
}

// diffIDs returns the digests of the uncompressed layers, which the configuration lists. The image
// has the given number of layers.
func diffIDs(img v1.Image, layers int) ([]v1.Hash, error) {
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	if n := len(config.RootFS.DiffIDs); n != layers {
		return nil, fmt.Errorf("the container image is damaged: %d layers, its configuration names %d", layers, n)
	}
	return config.RootFS.DiffIDs, nil
}

// openRegistry fetches the manifest of an image for linux/amd64. It checks that the number of
// layers and the declared size of the configuration are within bounds.
func openRegistry(ctx context.Context, reference string, login *registry.Login) (v1.Image, error) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return nil, err
	}
	img, err := remote.Image(ref, append(registryOptions(ref.Context().RegistryStr(), login), remote.WithContext(ctx),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"}))...)
	if err != nil {
		return nil, err
	}
	return img, checkManifest(img)
}

// registryOptions returns the options for requests to a registry. Without a login (nil), the
// credentials in Docker's configuration are used.
func registryOptions(home string, l *registry.Login) []remote.Option {
	auth := remote.WithAuthFromKeychain(registry.Keychain{})
	if l != nil {
		auth = remote.WithAuth(l.Authenticator())
	}
	return []remote.Option{auth, remote.WithTransport(guarded{home})}
}

// guarded is the transport to a registry. It refuses requests that registry.Check refuses, and
// limits manifests to maxRegistryManifest bytes. Without this limit, the library would read up to
// 100 MiB, and parse them into several GiB of values.
type guarded struct{ home string }

// RoundTrip implements http.RoundTripper.
func (g guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := registry.Check(r, g.home); err != nil {
		return nil, err
	}
	resp, err := remote.DefaultTransport.RoundTrip(r)
	if err == nil && r.Header.Get("Accept") != "" { // only requests for manifests have this header
		resp.Body = registry.Bound(resp.Body, "manifest", maxRegistryManifest)
	}
	return resp, err
}

// openArchive opens an archive of docker save, and reports whether its layers are uncompressed
// (plain). The library does not report this to its caller: one method of the library decompresses
// layers without bounds, and the other method compresses them.
func openArchive(file string) (img v1.Image, plain bool, err error) {
	if err := checkSize(file, "manifest.json", maxArchiveManifest); err != nil { // the library reads any size
		return nil, false, err
	}
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(file) })
	if err == nil && len(manifest) == 1 {
		err = checkSize(file, manifest[0].Config, maxConfigBytes)
	}
	if err != nil {
		return nil, false, err
	}
	if img, err = tarball.ImageFromPath(file, nil); err != nil || len(manifest[0].Layers) == 0 {
		return img, true, err
	}
	layers := manifest[0].Layers
	if len(layers) > maxLayers {
		return nil, false, fmt.Errorf("the image has %d layers: at most %d are read", len(layers), maxLayers)
	}
	magic, _, err := startOf(file, layers[0]) // like the library, judge all layers by the first one
	return img, !isCompressed(magic), err
}

// magicBytes is the length in bytes of the longest magic number that isCompressed knows.
const magicBytes = 4

// isCompressed reports whether forkd-unpack will decompress a layer that begins with the given
// bytes.
func isCompressed(start []byte) bool {
	return bytes.HasPrefix(start, []byte("\x1f\x8b")) || // RFC 1952, section 2.3.1
		bytes.HasPrefix(start, []byte("\x28\xb5\x2f\xfd")) // RFC 8878, section 3.1.1
}

// maxLinks bounds the links that startOf follows from the name of a file to the file's content.
const maxLinks = 10

// checkSize returns an error if a file in an archive has more than the given number of bytes.
func checkSize(archive, name string, most int64) error {
	_, size, err := startOf(archive, name)
	if err == nil && size > most {
		err = fmt.Errorf("%.200s has %d bytes: at most %d are read", name, size, most)
	}
	return err
}

// startOf returns the first bytes and the size of a file in an archive. It follows links.
func startOf(archive, name string) (start []byte, size int64, err error) {
	for range maxLinks {
		f, err := os.Open(archive)
		if err != nil {
			return nil, 0, err
		}
		start, size, link, err := startOrLink(tar.NewReader(f), name)
		f.Close()
		if err != nil || link == "" {
			return start, size, err
		}
		name = path.Join(path.Dir(name), link)
	}
	return nil, 0, fmt.Errorf("%s: too many links", name)
}

func startOrLink(in *tar.Reader, name string) (start []byte, size int64, link string, err error) {
	for {
		h, err := in.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil, 0, "", fmt.Errorf("the archive has no file %.200q", name)
		case err != nil:
			return nil, 0, "", fmt.Errorf("%s: %w", name, err)
		case path.Clean(h.Name) != path.Clean(name):
		case h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink: // the library follows both types
			return nil, 0, h.Linkname, nil
		default:
			start = make([]byte, magicBytes)
			n, err := io.ReadFull(in, start)
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = nil
			}
			return start[:n], h.Size, "", err
		}
	}
}

// openLayout opens <directory>[:<tag>]. Without a tag the layout must have one image for
// linux/amd64.
func openLayout(arg, dir string) (v1.Image, error) {
	file, tag := absolute(dir, arg), ""
	if _, err := os.Stat(file); err != nil {
		if i := strings.LastIndexByte(arg, ':'); i > 0 {
			file, tag = absolute(dir, arg[:i]), arg[i+1:]
		}
	}
	index, err := layout.ImageIndexFromPath(file)
	if err != nil {
		return nil, fmt.Errorf("not an OCI layout: %w", err)
	}
	return fromIndex(index, tag, 0)
}

func fromIndex(index v1.ImageIndex, tag string, depth int) (v1.Image, error) {
	if depth > maxIndexDepth {
		return nil, fmt.Errorf("indexes are nested deeper than %d", maxIndexDepth)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var found []v1.Descriptor
	for _, d := range manifest.Manifests {
		if tag != "" && d.Annotations[refNameAnnotation] != tag {
			continue
		}
		if p := d.Platform; p != nil && (p.OS != "linux" || p.Architecture != "amd64") {
			continue
		}
		if d.MediaType.IsImage() || d.MediaType.IsIndex() {
			found = append(found, d)
		}
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("%d images for linux/amd64 match (tag %q): name one by its tag, oci:<directory>:<tag>",
			len(found), tag)
	}
	if found[0].MediaType.IsImage() {
		return index.Image(found[0].Digest)
	}
	inner, err := index.ImageIndex(found[0].Digest)
	if err != nil {
		return nil, err
	}
	return fromIndex(inner, "", depth+1)
}

func absolute(dir, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}
