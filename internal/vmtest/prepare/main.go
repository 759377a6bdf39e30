// Command prepare creates the files that VM tests need, and describes them in
// <cache>/vmtest/assets.json. The files are guest kernels with the present agent, root file
// systems, the host's root certificates, and copies of the present forkd-vmm and bin/forkd. The
// command reuses kernels and file systems in the cache. Its arguments are recipes for more file
// systems. Run it after scripts/build.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/build/debpkg"
	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/vmtest"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "prepare: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, recipes []string) error {
	cache, err := cachedir.Dir()
	if err != nil {
		return err
	}
	a := vmtest.Assets{Images: map[string]string{}}
	vmm, err := embedded.Open(embedded.VMM)
	if err != nil {
		return err
	}
	if a.VMM, err = install(cache, embedded.VMM, vmm); err != nil {
		return err
	}
	forkd, err := os.ReadFile("bin/forkd")
	if err != nil {
		return err
	}
	if a.Forkd, err = install(cache, "forkd", forkd); err != nil {
		return err
	}
	roots, err := hostRoots()
	if err != nil {
		return err
	}
	if a.Roots, err = install(cache, "roots.pem", roots); err != nil {
		return err
	}
	if a.Torture, err = buildGuest(ctx, cache, "torture"); err != nil {
		return err
	}
	if a.Disk, err = emptyDisk(ctx, cache); err != nil {
		return err
	}
	if a.Busybox, err = busybox(ctx, cache); err != nil {
		return err
	}
	agent, err := embedded.Open(embedded.Agent)
	if err != nil {
		return err
	}
	// Most steps for images use only one processor, and so do a few steps for kernels.
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return kernels(ctx, cache, agent, &a) })
	group.Go(func() error { return images(ctx, cache, append(recipes, "base", "python-numpy"), a.Images) })
	if err := group.Wait(); err != nil {
		return err
	}
	if a.NoBuild != "" {
		fmt.Println("prepare:", a.NoBuild)
	}
	return atomicfile.WriteJSON(filepath.Join(cache, vmtest.AssetsFile), a)
}

// kernels makes the guest kernels, and the earlier builds of forkd with their kernels.
func kernels(ctx context.Context, cache string, agent []byte, a *vmtest.Assets) (err error) {
	if a.Cloud, err = kernel(image.Kernel(ctx, cache, agent, progress)); err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "guest/kernel/build.sh")
	build.Stderr = os.Stderr // show the progress, because a build takes minutes
	built, err := build.Output()
	if err != nil {
		return fmt.Errorf("build the minimal guest kernel: %w", err)
	}
	dir := strings.TrimSpace(string(built))
	if a.Minimal, err = kernel(image.UserKernel(ctx, cache, filepath.Join(dir, "vmlinux"), agent)); err != nil {
		return err
	}
	a.Minimal.BzImage = filepath.Join(dir, "bzImage")
	a.Earlier, a.NoBuild, err = earlier(ctx, cache, a.Minimal.VMLinux)
	return err
}

// images makes the images of recipes, and stores their directories in dirs.
func images(ctx context.Context, cache string, recipes []string, dirs map[string]string) error {
	unpack, err := embedded.Open(embedded.Unpack)
	if err != nil {
		return err
	}
	for _, name := range recipes {
		recipe, err := image.LoadRecipe(filepath.Join("recipes", name))
		if err != nil {
			return err
		}
		img, err := image.Build(ctx, cache, recipe, image.Unpacker{Program: unpack}, progress)
		if err != nil {
			return err
		}
		dirs[name] = img.Dir
	}
	return nil
}

func kernel(k *image.KernelFiles, err error) (vmtest.Kernel, error) {
	if err != nil {
		return vmtest.Kernel{}, err
	}
	return vmtest.Kernel{Name: k.Version, VMLinux: k.VMLinux, BzImage: k.BzImage, Initrd: k.Initrd}, nil
}

func progress(s image.Step) {
	fmt.Println(strings.TrimSpace(fmt.Sprintf("prepare: %s %s", s.Stage, s.Detail)))
}

// buildGuest builds a static program of test/guest. The result is in a directory that the emulated
// host can read.
func buildGuest(ctx context.Context, cache, name string) (string, error) {
	path := filepath.Join(cache, "vmtest", name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "./test/guest/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build test/guest/%s: %w\n%s", name, err, out)
	}
	return path, nil
}

// emptyDisk creates a file system of 1 GiB in a sparse file.
func emptyDisk(ctx context.Context, cache string) (string, error) {
	path := filepath.Join(cache, "vmtest", "empty.ext4")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	tool, err := exec.LookPath("mke2fs")
	if err != nil {
		tool = "/usr/sbin/mke2fs" // this directory is not in the PATH of ordinary users
	}
	staging, err := os.MkdirTemp(filepath.Dir(path), "disk") // another prepare may be running
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(staging)
	tmp := filepath.Join(staging, "new")
	out, err := exec.CommandContext(ctx, tool, "-q", "-t", "ext4", "-m", "0", "-E", "lazy_itable_init=1,root_owner=0:0",
		tmp, "1G").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("run mke2fs (Debian package e2fsprogs): %w: %s", err, out)
	}
	return path, os.Rename(tmp, path)
}

// busybox fetches busybox, a static shell for test images that contain no distribution.
func busybox(ctx context.Context, cache string) (string, error) {
	path := filepath.Join(cache, "vmtest", "busybox")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	tree, err := debpkg.Fetch(ctx, filepath.Dir(path), "", "busybox-static")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tree)
	return path, debpkg.Take(tree, "bin/busybox", path)
}

// hostRoots returns the root certificates that this host trusts. An image does not have all of
// them: if the host reaches package registries through a TLS-terminating proxy, only the host
// trusts the proxy's certificate.
func hostRoots() ([]byte, error) {
	name := os.Getenv("SSL_CERT_FILE")
	if name == "" {
		name = "/etc/ssl/certs/ca-certificates.crt"
	}
	p, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the host's authorities (package ca-certificates has them): %w", err)
	}
	return p, nil
}

// install writes a file to a directory that the emulated host can read.
func install(cache, name string, content []byte) (string, error) {
	dir := filepath.Join(cache, "vmtest")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	return path, atomicfile.Write(path, content, 0o755) // atomic, because another prepare may be running
}
