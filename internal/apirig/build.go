package apirig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/build/dockerfile"
	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/daemon/template"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/helpervm"
	"github.com/forkd/forkd/internal/host/imagevm"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/vmfake"
)

// builders returns the builder of templates, and the builder that executes the steps of templates
// and Dockerfiles.
func (r *Rig) builders(dir string, o *Options, c build.Config) (builder *template.Builder, err error) {
	if r.images, err = r.unpacks(dir, o.Unpack); err != nil {
		return nil, err
	}
	c.Image, c.Dir, c.Log = imagesOf(o.Images), filepath.Join(dir, "build"), slog.New(slog.DiscardHandler)
	c.Quiet = time.Millisecond
	r.Plans = c
	if r.Steps, err = build.New(c); err != nil {
		return nil, err
	}
	r.Builds = template.Config{Manager: c.Manager, Builds: r.Steps, Dir: filepath.Join(dir, "builds"), Log: c.Log}
	return template.New(r.Builds)
}

// unpacks returns an Images whose builder VMs are faked and call unpack(stream).
func (r *Rig) unpacks(dir string, unpack func(io.Reader) error) (*build.Images, error) {
	r.Unpacks, r.Scratch = vmfake.NewBuilders(vmfake.Unpacks(unpack)), filepath.Join(dir, "scratch")
	run := filepath.Join(dir, "builders")
	if err := errors.Join(os.MkdirAll(run, 0o700), os.MkdirAll(r.Scratch, 0o700)); err != nil {
		return nil, err
	}
	r.Cache = filepath.Join(dir, "image-cache")
	filler := imagevm.New(imagevm.Config{Config: helpervm.Config{VMMs: r.Unpacks, RunDir: run, Template: "host"},
		Initrd: os.Open, Room: (&admit.Rules{}).Room})
	return &build.Images{Filler: filler, Dir: r.Cache}, nil
}

// imagesOf returns a function that resolves the names of images and stands in for a registry. The
// registry also has the further images with the given names.
func imagesOf(more []string) func(context.Context, string, *build.Login) (string, dockerfile.Config, error) {
	return func(_ context.Context, name string, login *build.Login) (string, dockerfile.Config, error) {
		switch {
		case name == PrivateImage && login != nil && *login == build.Login{User: "me", Password: "secret"}:
			return "sha256:2", dockerfile.Config{}, nil
		case name == PrivateImage:
			return "", dockerfile.Config{}, errors.New("the registry wants another password")
		case name != Image && !slices.Contains(more, name):
			return "", dockerfile.Config{}, errors.New("the registry has no such image")
		}
		env := map[string]string{"PATH": "/usr/bin:/bin", "OF": "image"}
		return imageDigest, dockerfile.Config{Env: env, Dir: "/usr"}, nil
	}
}

// bootOf returns a function that provides the same boot files for every container image. The
// function refuses a reference to Image without the digest that the function of imagesOf gives.
func bootOf(file string) build.Boot {
	return func(_ context.Context, i build.Image, _ func(string)) (bake.Request, error) {
		switch {
		case i.Reference == PrivateImage && i.Login == nil:
			return bake.Request{}, errors.New("the registry wants a password")
		case strings.HasPrefix(i.Reference, Image) && i.Reference != Image+"@"+imageDigest:
			return bake.Request{}, fmt.Errorf("%s: want the digest that the build was planned with", i.Reference)
		}
		return bake.Request{Kernel: file, Initrd: file, Rootfs: file}, nil
	}
}

// boots returns the function with which a manager boots VMs from disk-only snapshots.
func boots(b *bake.Baker) sandbox.Boot {
	return func(ctx context.Context, from, to string) error {
		_, err := b.Bake(ctx, bake.Request{Tag: to, From: from, Transient: true})
		return err
	}
}
