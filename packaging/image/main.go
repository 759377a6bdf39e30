// Command image makes forkd's container image without a container engine. The image consists of a
// Debian made by mmdebstrap, and a layer above it with the program.
//
//	go run ./packaging/image -base debian.tar -forkd bin/forkd -version 0.6.0 -o image.tar
//
// The result has the form of `docker save`, which `docker load`, `podman load`, `ctr images import`
// and `crane push` read. All times in it are $SOURCE_DATE_EPOCH, so that the same files make the
// same image. The command publishes nothing.
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	base := flag.String("base", "", "tar archive of the root directory")
	program := flag.String("forkd", "bin/forkd", "the program")
	version := flag.String("version", "", "its version, which is also the image's tag")
	out := flag.String("o", "", "file to write")
	flag.Parse()
	if err := write(*base, *program, *version, *out); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func write(base, program, version, out string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: want seconds since 1970: %w", err)
	}
	made := time.Unix(seconds, 0).UTC()
	tag, err := name.NewTag("forkd:" + version)
	if err != nil {
		return err
	}
	image, err := build(base, program, version, made)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(out, tag, image)
}

// build assembles the image.
func build(base, program, version string, made time.Time) (v1.Image, error) {
	debian, err := tarball.LayerFromFile(base)
	if err != nil {
		return nil, fmt.Errorf("read the base: %w", err)
	}
	files, err := programLayer(program, made)
	if err != nil {
		return nil, err
	}
	image, err := mutate.Append(empty.Image,
		mutate.Addendum{Layer: debian, History: v1.History{Created: v1.Time{Time: made}, CreatedBy: "mmdebstrap"}},
		mutate.Addendum{Layer: files, History: v1.History{Created: v1.Time{Time: made}, CreatedBy: "packaging/image"}})
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.Architecture, file.OS, file.Created = "amd64", "linux", v1.Time{Time: made}
	file.Config = config(version)
	return mutate.ConfigFile(image, file)
}

// config is the default configuration for running the image.
func config(version string) v1.Config {
	return v1.Config{
		Entrypoint: []string{"/usr/bin/forkd"},
		Cmd:        []string{"daemon"},
		// The daemon needs root to make users, namespaces and an empty root for each VMM; see
		// docs/install.md.
		User: "0:0",
		Env: []string{
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"FORKD_CACHE=" + cacheDir,
		},
		WorkingDir: "/",
		Volumes:    map[string]struct{}{stateDir: {}, cacheDir: {}},
		StopSignal: "SIGTERM",
		// The health check uses the unix socket. Root needs no token at this socket, and the socket
		// has reserved places for requests.
		Healthcheck: &v1.HealthConfig{
			Test: []string{"CMD", "/usr/bin/forkd", "version", "--daemon"}, Interval: 30 * time.Second, Timeout: 5 * time.Second,
			StartPeriod: time.Minute, Retries: 3,
		},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "forkd",
			"org.opencontainers.image.description": "sandbox runtime that forks warm microVMs",
			"org.opencontainers.image.version":     version,
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.source":      "https://github.com/forkd/forkd",
		},
	}
}

// Directories that only the daemon uses.
const (
	stateDir = "/var/lib/forkd"
	cacheDir = "/var/cache/forkd"
)

// programLayer contains the program, and the directories of the volumes with the modes that forkd
// requires.
func programLayer(program string, made time.Time) (v1.Layer, error) {
	text, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range []*tar.Header{
		{Name: stateDir[1:] + "/", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: cacheDir[1:] + "/", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "usr/bin/forkd", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(text))},
	} {
		h.ModTime = made
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
	}
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())),
			nil
	})
}
