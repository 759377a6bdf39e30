// Command host tests the Debian package on a complete host. The host is emulated, boots Debian with
// systemd, and has KVM. scripts/package runs the command:
//
//	host -root HOST.tar -earlier EARLIER.deb -earlier-agent FORKD-AGENT -package PACKAGE.deb -version VERSION
//
// It makes the disk (disk.go), boots it as often as the steps require (run.go), and prints the
// output of the steps. The steps are in the script "try", which runs in the emulated host. The disk
// also has the files that the steps need, because the emulated host has no network.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/emu/debkernel"
	"github.com/forkd/forkd/internal/emu/debqemu"
	"github.com/forkd/forkd/recipes"
)

// limit bounds all boots together. On two processors that also did other work, they took 23
// minutes.
const limit = 2 * time.Hour

func main() {
	var p parts
	flag.StringVar(&p.root, "root", "", "tar archive of the Debian to boot, with systemd")
	flag.StringVar(&p.earlier, "earlier", "", "package that is installed first")
	flag.StringVar(&p.earlierAgent, "earlier-agent", "", "its forkd-agent")
	flag.StringVar(&p.deb, "package", "", "package that replaces it")
	flag.StringVar(&p.version, "version", "", "version of the package")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("ended after %v", limit))
	defer cancel()
	if err := run(ctx, p); err != nil {
		fmt.Fprintln(os.Stderr, "host:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, p parts) error {
	cache, err := cachedir.Dir()
	if err != nil {
		return err
	}
	if err := p.guest(ctx, cache); err != nil {
		return err
	}
	kernels := filepath.Join(cache, debkernel.CacheDir)
	kernel, err := debkernel.Find(kernels)
	if errors.Is(err, fs.ErrNotExist) {
		progress("downloading the emulated host's kernel (about 100 MB, once)")
		kernel, err = debkernel.Fetch(ctx, kernels)
	}
	if err != nil {
		return err
	}
	busybox, err := debkernel.Busybox(ctx, kernels)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(cache, "package-host")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := p.makeDisk(ctx, dir); err != nil {
		return err
	}
	if err := writeInitrd(filepath.Join(dir, fileInitrd), kernel, busybox); err != nil {
		return err
	}
	qemu := debqemu.Choose(ctx, filepath.Join(cache, "machine-qemu"), progress)
	h := host{dir: dir, qemu: qemu, vmlinux: kernel.VMLinux, said: func(line string) { fmt.Println(line) }}
	return h.untilDone(ctx)
}

// guest makes the files that `forkd build base` would otherwise download.
func (p *parts) guest(ctx context.Context, cache string) error {
	agent, err := embedded.Open(embedded.Agent)
	if err != nil {
		return err
	}
	step := func(s image.Step) { progress(s.Stage + " " + s.Detail) }
	if p.kernel, err = image.Kernel(ctx, cache, agent, step); err != nil {
		return err
	}
	// The earlier package may have other recipes, so it bakes the image of this package, with the
	// agent of the earlier package.
	if agent, err = os.ReadFile(p.earlierAgent); err != nil {
		return err
	}
	earlier, err := image.Kernel(ctx, cache, agent, step)
	if err != nil {
		return err
	}
	p.earlierInitrd = earlier.Initrd
	recipe, err := image.LoadRecipeFS(recipes.FS, "base")
	if err != nil {
		return err
	}
	unpack, err := embedded.Open(embedded.Unpack)
	if err != nil {
		return err
	}
	p.image, err = image.Build(ctx, cache, recipe, image.Unpacker{Program: unpack}, step)
	return err
}

func progress(s string) { fmt.Println("host:", s) }
