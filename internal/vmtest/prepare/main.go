// Command prepare makes the files that VM tests need and describes them in <cache>/vmtest.json: guest kernels with the
// current agent, root file systems, and a copy of the current forkd-vmm. Everything but the last is taken from the cache
// if it is there. Run it after scripts/build.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/image"
	"github.com/forkd/forkd/internal/vmtest"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintf(os.Stderr, "prepare: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	cache, err := cachedir.Dir()
	if err != nil {
		return err
	}
	a := vmtest.Assets{Images: map[string]string{}}
	if a.VMM, err = install(cache, embedded.VMM); err != nil {
		return err
	}
	agent, err := embedded.Open(embedded.Agent)
	if err != nil {
		return err
	}
	if a.Cloud, err = kernel(image.Kernel(ctx, cache, agent, progress)); err != nil {
		return err
	}
	built, err := exec.CommandContext(ctx, "guest/kernel/build.sh").Output()
	if err != nil {
		return fmt.Errorf("build the minimal guest kernel: %w", err)
	}
	dir := strings.TrimSpace(string(built))
	if a.Minimal, err = kernel(image.UserKernel(ctx, cache, filepath.Join(dir, "vmlinux"), agent)); err != nil {
		return err
	}
	a.Minimal.BzImage = filepath.Join(dir, "bzImage")
	for _, name := range []string{"base", "python-numpy"} {
		recipe, err := image.LoadRecipe(filepath.Join("recipes", name))
		if err != nil {
			return err
		}
		img, err := image.Build(ctx, cache, recipe, progress)
		if err != nil {
			return err
		}
		a.Images[name] = img.Dir
	}
	p, err := json.MarshalIndent(a, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(cache, vmtest.AssetsFile), p, 0o644)
}

func kernel(k *image.KernelFiles, err error) (vmtest.Kernel, error) {
	if err != nil {
		return vmtest.Kernel{}, err
	}
	return vmtest.Kernel{Name: k.Version, VMLinux: k.VMLinux, BzImage: k.BzImage, Initrd: k.Initrd}, nil
}

func progress(s image.Step) { fmt.Printf("prepare: %v\n", s) }

// install writes an embedded binary where the machine sees it too.
func install(cache, name string) (string, error) {
	data, err := embedded.Open(name)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "vmtest")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	tmp := path + ".new"
	if err := os.WriteFile(tmp, data, 0o755); err != nil {
		return "", err
	}
	return path, os.Rename(tmp, path)
}
