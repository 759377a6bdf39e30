// Package debkernel gets what `forkd machine` boots out of Debian packages: a distribution kernel
// (vmlinux, bzImage and modules directory) and busybox.
//
// Downloading and unpacking is package debpkg's. It needs no root. It does not compile, configure
// or boot anything.
package debkernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/forkd/forkd/internal/build/debpkg"
	"github.com/forkd/forkd/internal/build/kernelimage"
)

// metaPackages depend on the newest kernel of the 6.12 series, first found first: bookworm-security
// has it under its own name, in trixie it is the default.
var metaPackages = []string{"linux-image-6.12-amd64", "linux-image-amd64"}

// imagePackage matches the package a meta package depends on, for example
// linux-image-6.12.117+deb12-amd64.
var imagePackage = regexp.MustCompile(`^linux-image-(\d[^\s/]*-amd64)$`)

// CacheDir is where the emulated hosts keep their kernel, in the cache directory. Guests have other
// kernels, elsewhere.
const CacheDir = "machine-kernel"

// Kernel is an unpacked kernel package.
type Kernel struct {
	VMLinux    string // path of the uncompressed ELF kernel
	BzImage    string // path of the same kernel as its package has it, for boot loaders
	ModulesDir string // path of lib/modules/<version>
}

// Find returns the newest kernel that Fetch has put below dir; the error wraps fs.ErrNotExist if
// there is none.
func Find(dir string) (Kernel, error) {
	found, err := filepath.Glob(filepath.Join(dir, "*-amd64", bzImageName))
	if err != nil {
		return Kernel{}, fmt.Errorf("find kernel in %s: %w", dir, err)
	}
	if len(found) == 0 {
		return Kernel{}, fmt.Errorf("find kernel in %s: %w", dir, fs.ErrNotExist)
	}
	slices.SortFunc(found, func(a, b string) int { return debpkg.CompareVersions(filepath.Dir(a), filepath.Dir(b)) })
	return in(filepath.Dir(found[len(found)-1])), nil
}

// Names in a kernel's directory.
const (
	vmLinuxName = "vmlinux"
	bzImageName = "vmlinuz"
	modulesName = "modules"
)

func in(dir string) Kernel {
	return Kernel{VMLinux: filepath.Join(dir, vmLinuxName), BzImage: filepath.Join(dir, bzImageName),
		ModulesDir: filepath.Join(dir, modulesName)}
}

// Fetch downloads the newest 6.12 kernel package of the host's apt sources, about 100 MB, and
// unpacks it below dir. A complete copy appears under its final name at once or not at all.
func Fetch(ctx context.Context, dir string) (Kernel, error) {
	pkg, err := newestImage(ctx)
	if err != nil {
		return Kernel{}, err
	}
	version := imagePackage.FindStringSubmatch(pkg)[1]
	final := filepath.Join(dir, version)
	k := in(final)
	if _, err := os.Stat(k.BzImage); err == nil {
		return k, nil
	}
	staging, err := debpkg.Fetch(ctx, dir, "", pkg)
	if err != nil {
		return Kernel{}, err
	}
	defer os.RemoveAll(staging)
	if err := arrange(staging, version); err != nil {
		return Kernel{}, fmt.Errorf("unpack %s: %w", pkg, err)
	}
	if _, err := os.Stat(k.BzImage); errors.Is(err, fs.ErrNotExist) {
		// What an older forkd left has no bzImage: it makes room, and goes with the staging
		// directory.
		if err := os.Rename(final, filepath.Join(staging, "old")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Kernel{}, fmt.Errorf("publish kernel: %w", err)
		}
	}
	err = os.Rename(filepath.Join(staging, "out"), final)
	if err != nil && !errors.Is(err, fs.ErrExist) { // another process may have been faster
		return Kernel{}, fmt.Errorf("publish kernel: %w", err)
	}
	return k, nil
}

// arrange makes staging/out from the unpacked package: vmlinux and modules.
func arrange(staging, version string) error {
	out := filepath.Join(staging, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	bzImage := filepath.Join(out, bzImageName)
	if err := debpkg.Take(staging, "boot/vmlinuz-"+version, bzImage); err != nil {
		return err
	}
	image, err := os.ReadFile(bzImage)
	if err != nil {
		return err
	}
	vmlinux, err := kernelimage.ExtractVMLinux(image)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, vmLinuxName), vmlinux, 0o644); err != nil {
		return err
	}
	return debpkg.Take(staging, "lib/modules/"+version, filepath.Join(out, modulesName))
}

// Busybox returns the path of a static busybox: the host's if it has one, else one fetched into
// dir.
func Busybox(ctx context.Context, dir string) (string, error) {
	fetched := filepath.Join(dir, "busybox")
	for _, path := range []string{"/bin/busybox", "/usr/bin/busybox", fetched} {
		if static(path) {
			return path, nil
		}
	}
	staging, err := debpkg.Fetch(ctx, dir, "", "busybox-static")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(staging)
	busybox := filepath.Join(staging, "busybox")
	if err := debpkg.Take(staging, "bin/busybox", busybox); err != nil {
		return "", fmt.Errorf("unpack busybox-static: %w", err)
	}
	if !static(busybox) {
		return "", errors.New("unpack busybox-static: its busybox is not static")
	}
	if err := os.Rename(busybox, fetched); err != nil {
		return "", fmt.Errorf("publish busybox: %w", err)
	}
	return fetched, nil
}

// newestImage asks apt for the package that the meta package depends on.
func newestImage(ctx context.Context) (string, error) {
	for _, meta := range metaPackages {
		out, err := debpkg.Run(ctx, "", "apt-cache", "depends", "--important", meta)
		if err != nil {
			continue // not in this release
		}
		if pkg, ok := imageDependency(out); ok {
			return pkg, nil
		}
	}
	return "", fmt.Errorf("find kernel package: apt knows none of %s: run `apt-get update`, or add the release's "+
		"security archive to the apt sources", strings.Join(metaPackages, ", "))
}

// imageDependency finds the kernel package in the output of `apt-cache depends`.
func imageDependency(out string) (string, bool) {
	for line := range strings.Lines(out) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: ")
		if ok && imagePackage.MatchString(name) {
			return name, true
		}
	}
	return "", false
}
