// Package debkernel fetches, from Debian packages, the files that `forkd machine` boots: a
// distribution kernel (vmlinux, bzImage and modules directory) and busybox.
//
// Package debkernel uses package debpkg to download and unpack the Debian packages. debkernel needs
// no root privileges, and does not compile, configure or boot a kernel.
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

// metaPackages are packages that depend on the newest kernel of the 6.12 series. The first package
// that exists is used. bookworm-security has the first package, and in trixie the second package
// depends on 6.12.
var metaPackages = []string{"linux-image-6.12-amd64", "linux-image-amd64"}

// imagePackage matches the kernel package on which a meta package depends, such as
// linux-image-6.12.117+deb12-amd64.
var imagePackage = regexp.MustCompile(`^linux-image-(\d[^\s/]*-amd64)$`)

// CacheDir is the subdirectory of the cache for the kernels of emulated hosts. Kernels of guests
// are in another subdirectory.
const CacheDir = "machine-kernel"

// Kernel is an unpacked kernel package.
type Kernel struct {
	VMLinux    string // path of the uncompressed ELF kernel
	BzImage    string // path of the compressed kernel, for boot loaders
	ModulesDir string // path of lib/modules/<version>
}

// Find returns the newest kernel that Fetch has stored below dir. The error wraps fs.ErrNotExist if
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

// Fetch downloads the newest 6.12 kernel package from the host's apt sources, about 100 MB, and
// unpacks it below dir. The kernel appears under its final name completely or not at all.
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
		// A kernel of an older forkd has no bzImage. Move its directory into staging, which is
		// removed at the end.
		if err := os.Rename(final, filepath.Join(staging, "old")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Kernel{}, fmt.Errorf("publish kernel: %w", err)
		}
	}
	err = os.Rename(filepath.Join(staging, "out"), final)
	if err != nil && !errors.Is(err, fs.ErrExist) { // another process may have fetched it first
		return Kernel{}, fmt.Errorf("publish kernel: %w", err)
	}
	return k, nil
}

// arrange makes staging/out with the files of the unpacked package: vmlinux, bzImage and modules.
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

// Busybox returns the path of a static busybox: the host's busybox, or else one that it fetches
// into dir.
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

// newestImage returns the kernel package on which a meta package depends, according to apt.
func newestImage(ctx context.Context) (string, error) {
	for _, meta := range metaPackages {
		out, err := debpkg.Run(ctx, "", "apt-cache", "depends", "--important", meta)
		if err != nil {
			continue // the release does not have this package
		}
		if pkg, ok := imageDependency(out); ok {
			return pkg, nil
		}
	}
	return "", fmt.Errorf("find kernel package: apt knows none of %s: run `apt-get update`, or add the release's "+
		"security archive to the apt sources", strings.Join(metaPackages, ", "))
}

// imageDependency returns the kernel package in the output of `apt-cache depends`.
func imageDependency(out string) (string, bool) {
	for line := range strings.Lines(out) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: ")
		if ok && imagePackage.MatchString(name) {
			return name, true
		}
	}
	return "", false
}
