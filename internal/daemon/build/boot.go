package build

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/imagevm"
	"github.com/forkd/forkd/internal/registry"
)

// Boot converts a container image to the files that a parent boots from, and reports the stages of
// the conversion. The returned request has no tag yet. If the image needs a builder VM and the
// client would have to wait for one, Boot returns imagevm.ErrNoPlace.
type Boot func(ctx context.Context, i Image, report func(string)) (bake.Request, error)

// Place waits for a place for one builder VM of a client. The function that it returns gives the
// place back.
type Place func(ctx context.Context, client string) (leave func(), err error)

// Image is a container image of a registry.
type Image struct {
	Reference string
	Login     *Login // nil: the login stored by `docker login` for the daemon's user
	DiskMiB   int    // size of the root file system
	Client    string // name of the client that builds from the image

	// If Place is set, the caller of Boot has reserved a place for a builder VM of the client. Boot
	// calls Place to give the place back.
	Place func()
}

// Login holds the credentials for a registry.
type Login = registry.Login

// Images makes root file systems from container images.
type Images struct {
	Filler *imagevm.Filler
	Dir    string // cache of images; see ImageDir
}

// Boot is the daemon's function of the type Boot. Like `forkd build docker://IMAGE`, it makes a
// root file system from a container image, in m.Dir, and fetches the guest kernel into the cache of
// the daemon's user.
func (m *Images) Boot(ctx context.Context, i Image, report func(string)) (bake.Request, error) {
	if i.Place != nil {
		defer i.Place()
	}
	r, ok, err := image.FromContainer("docker://" + i.Reference)
	if err != nil {
		return bake.Request{}, err
	}
	if !ok {
		return bake.Request{}, fmt.Errorf("%.200q: want the name of a container image, such as python:3.12-slim",
			i.Reference)
	}
	r.User, r.DiskMiB, r.Login = true, i.DiskMiB, i.Login
	cache, err := cachedir.Dir()
	if err != nil {
		return bake.Request{}, err
	}
	var mu sync.Mutex
	stage := ""
	progress := func(s image.Step) {
		mu.Lock()
		defer mu.Unlock()
		if s.Stage != stage { // only stages are reported, because the output of the tools is meant for terminals
			stage = s.Stage
			report(stage)
		}
	}
	kernel, err := image.KernelAlone(ctx, cache, progress)
	if err != nil {
		return bake.Request{}, fmt.Errorf("the daemon's host: %w", err)
	}
	fill := func(ctx context.Context, d image.Disk) error { return m.fill(ctx, i, kernel.VMLinux, d) }
	img, err := image.Build(ctx, m.Dir, r, image.Unpacker{Fill: fill}, progress)
	if err != nil {
		return bake.Request{}, err
	}
	return bake.Request{Kernel: kernel.VMLinux, Rootfs: img.Rootfs(), Env: maps.Clone(img.Env)}, nil
}

// ImageDir returns the cache of the daemon's user if the daemon can write to it, and otherwise the
// given directory. An emulated host sees the cache of the real host, and does not change that
// cache.
func ImageDir(own string) string {
	if cache, err := cachedir.Dir(); err == nil && writable(cache) {
		return cache
	}
	return own
}

// List returns the cached images, and the leftovers of killed builds.
func (m *Images) List() ([]image.Cached, error) { return image.ListImages(m.Dir) }

// Prune removes the images that no build has used since the given time, and returns their
// descriptions. It keeps images whose root file systems are in inUse, a list of paths. If dryRun is
// true, Prune removes nothing.
func (m *Images) Prune(inUse []string, since time.Time, dryRun bool) ([]image.Cached, error) {
	list, err := m.List()
	if err != nil || dryRun {
		return image.Removable(list, inUse, since), err
	}
	var removed []image.Cached
	var errs []error
	for _, c := range image.Removable(list, inUse, since) {
		if err := c.Remove(); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, c)
	}
	return removed, errors.Join(errs...)
}

// Tidy removes the remains of images that an earlier daemon did not finish.
func (m *Images) Tidy() error {
	return image.RemoveLeftovers(m.Dir)
}

// fill fills the disk of an image in a builder VM. If no place is reserved, it takes one, or fails
// with imagevm.ErrNoPlace if none is free. It must not wait for a place: the caller of fill holds
// the lock of the image, and another client that has a place may need this lock.
func (m *Images) fill(ctx context.Context, i Image, kernel string, d image.Disk) error {
	if i.Place == nil {
		leave, err := m.Filler.Enter(i.Client)
		if err != nil {
			return err
		}
		defer leave()
	}
	f, err := os.OpenFile(d.Path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return m.Filler.Fill(ctx, imagevm.Request{Kernel: kernel, Disk: f, Size: int64(d.MiB) << 20, UUID: d.UUID,
		Stream: d.Stream})
}

// writable reports whether images can be added to a cache. The cache need not exist yet.
func writable(cache string) bool {
	images := filepath.Join(cache, "images")
	return os.MkdirAll(images, 0o755) == nil && unix.Access(images, unix.W_OK) == nil
}
