package build

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/host/bake"
)

// Boot prepares the files that a parent boots from, out of a container image, and reports its
// stages. The request has no tag yet.
type Boot func(ctx context.Context, i Image, report func(string)) (bake.Request, error)

// Image is a container image of a registry.
type Image struct {
	Reference string
	Login     *Login // nil: the login stored by `docker login` for the daemon's user
	DiskMiB   int    // size of the root file system
}

// Login holds the credentials for a registry.
type Login = image.Login

// BootImage is the daemon's Boot. Like `forkd build docker://IMAGE`, it makes a root file system
// from a container image and fetches the guest kernel, into the cache of the daemon's user.
func BootImage(ctx context.Context, i Image, report func(string)) (bake.Request, error) {
	r, ok, err := image.FromContainer("docker://" + i.Reference)
	if err != nil {
		return bake.Request{}, err
	}
	if !ok {
		return bake.Request{}, fmt.Errorf("%.200q: want the name of a container image, such as python:3.12-slim", i.Reference)
	}
	r.User, r.DiskMiB, r.Login = true, i.DiskMiB, i.Login
	cache, err := cachedir.Dir()
	if err != nil {
		return bake.Request{}, err
	}
	agent, err := embedded.Open(embedded.Agent)
	if err != nil {
		return bake.Request{}, err
	}
	var mu sync.Mutex
	stage := ""
	progress := func(s image.Step) {
		mu.Lock()
		defer mu.Unlock()
		if s.Stage != stage { // output of the tools is meant for terminals
			stage = s.Stage
			report(stage)
		}
	}
	img, err := image.Build(ctx, cache, r, progress)
	if err != nil {
		return bake.Request{}, fmt.Errorf("the daemon's host: %w", err)
	}
	kernel, err := image.Kernel(ctx, cache, agent, progress)
	if err != nil {
		return bake.Request{}, fmt.Errorf("the daemon's host: %w", err)
	}
	return bake.Request{Kernel: kernel.VMLinux, Initrd: kernel.Initrd, Rootfs: img.Rootfs(), Env: maps.Clone(img.Env)}, nil
}
