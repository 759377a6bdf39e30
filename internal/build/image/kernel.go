package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/forkd/forkd/internal/build/debpkg"
	"github.com/forkd/forkd/internal/build/kernelimage"
)

// Names inside a kernel's directory. The modules are the package's lib/modules/<version>.
const (
	bzImageName = "vmlinuz"
	vmlinuxName = "vmlinux"
	modulesName = "modules"
	configName  = "config"
)

// userPrefix is the prefix of kernels that users supplied.
const userPrefix = "user-"

// kernelSeries is the series of guest kernels: the first long-term series whose Debian
// configuration has vmgenid.
const kernelSeries = "6.12"

// maxKernelBytes is the maximum size of a kernel file, which is read into memory.
const maxKernelBytes = 512 << 20

// KernelFiles are the files that a VM boots from. All paths are absolute.
type KernelFiles struct {
	Version string // as uname -r prints it
	Dir     string // directory of the kernel in the cache
	BzImage string // empty for a user's ELF kernel
	VMLinux string // the same kernel, uncompressed; boots faster
	Modules string // lib/modules/<version> of its package; empty for a kernel without modules
	Initrd  string // the initramfs with the guest agent
}

// Kernel returns the newest Debian cloud kernel of the 6.12 series that the host's apt offers, with
// an initramfs for agent (the contents of a static forkd-agent). A cached kernel is not downloaded
// again. If apt offers no such kernel, as inside `forkd machine`, Kernel uses the newest kernel in
// the cache. Nothing is installed on the host.
func Kernel(ctx context.Context, cacheDir string, agent []byte, progress func(Step)) (*KernelFiles, error) {
	k, err := KernelAlone(ctx, cacheDir, progress)
	if err != nil {
		return nil, err
	}
	if err := k.makeInitrd(ctx, agent); err != nil {
		return nil, fmt.Errorf("make initramfs for kernel %s: %w", k.Version, err)
	}
	return k, nil
}

// UserKernel prepares a kernel that the user supplies: a bzImage or an ELF file with everything
// built in, such as the kernel that guest/kernel builds. The initramfs has no modules.
func UserKernel(ctx context.Context, cacheDir, name string, agent []byte) (*KernelFiles, error) {
	data, err := readKernel(name)
	if err != nil {
		return nil, fmt.Errorf("read kernel: %w", err)
	}
	sum := sha256.Sum256(data)
	key := userPrefix + hex.EncodeToString(sum[:8])
	parent := filepath.Join(cacheDir, "kernel")
	err = publish(ctx, parent, key, nil, func(staging string) error {
		if !kernelimage.IsELF(data) {
			if err := os.WriteFile(filepath.Join(staging, bzImageName), data, 0o444); err != nil {
				return err
			}
		}
		return writeVMLinux(staging, data)
	})
	if err != nil {
		return nil, fmt.Errorf("prepare kernel %s: %w", name, err)
	}
	k, err := openKernel(filepath.Join(parent, key))
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w", name, err)
	}
	if err := k.makeInitrd(ctx, agent); err != nil {
		return nil, fmt.Errorf("make initramfs for kernel %s: %w", name, err)
	}
	return k, nil
}

// KernelAlone is like Kernel, but makes no initramfs. If the kernel is in the cache, it writes
// nothing.
func KernelAlone(ctx context.Context, cacheDir string, progress func(Step)) (*KernelFiles, error) {
	k, err := debianKernel(ctx, cacheDir, progress)
	if err != nil {
		return nil, fmt.Errorf("get guest kernel: %w", err)
	}
	return k, nil
}

func debianKernel(ctx context.Context, cacheDir string, report reporter) (*KernelFiles, error) {
	parent := filepath.Join(cacheDir, "kernel")
	pkg, aptErr := newestCloudKernel(ctx)
	if aptErr != nil {
		version, err := newestCached(parent)
		if err != nil {
			return nil, errors.Join(aptErr, err)
		}
		return openKernel(filepath.Join(parent, version))
	}
	version := strings.TrimPrefix(pkg, "linux-image-")
	err := publish(ctx, parent, version, func() { report.step(StageWait, "") }, func(staging string) error {
		return fetchKernel(ctx, staging, pkg, report)
	})
	if err != nil {
		return nil, err
	}
	return openKernel(filepath.Join(parent, version))
}

// fetchKernel downloads pkg with apt, which verifies the package. It unpacks the kernel, the
// kernel's configuration and modules into staging, and adds the uncompressed kernel.
func fetchKernel(ctx context.Context, staging, pkg string, report reporter) error {
	if err := require(toolAptGet, toolDpkgDeb); err != nil {
		return err
	}
	work := filepath.Join(staging, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	report.step(StageDownload, pkg)
	deb, err := debpkg.Download(ctx, work, pkg)
	if err != nil {
		return err
	}
	report.step(StageUnpack, pkg)
	tree := filepath.Join(work, "tree")
	if err := debpkg.Unpack(ctx, deb, tree); err != nil {
		return err
	}
	version := strings.TrimPrefix(pkg, "linux-image-")
	for from, to := range map[string]string{
		"boot/vmlinuz-" + version: bzImageName,
		"boot/config-" + version:  configName,
		"lib/modules/" + version:  modulesName,
	} {
		if err := debpkg.Take(tree, from, filepath.Join(staging, to)); err != nil {
			return fmt.Errorf("package %s: %w", pkg, err)
		}
	}
	data, err := readKernel(filepath.Join(staging, bzImageName))
	if err != nil {
		return err
	}
	if err := writeVMLinux(staging, data); err != nil {
		return err
	}
	return os.RemoveAll(work)
}

func writeVMLinux(dir string, kernel []byte) error {
	elf, err := kernelimage.ExtractVMLinux(kernel)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, vmlinuxName), elf, 0o444)
}

func readKernel(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readLimited(f, name, maxKernelBytes)
}

// openKernel returns the files in a kernel's directory, without an initramfs.
func openKernel(dir string) (*KernelFiles, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	k := &KernelFiles{Dir: dir, VMLinux: filepath.Join(dir, vmlinuxName)}
	data, err := readKernel(k.VMLinux)
	if err != nil {
		return nil, fmt.Errorf("%w; remove %s to have it made again", err, dir)
	}
	if !kernelimage.IsELF(data) {
		return nil, fmt.Errorf("%s is damaged: remove %s to have it made again", k.VMLinux, dir)
	}
	if k.Version = kernelVersion(data); k.Version == "" {
		return nil, fmt.Errorf("%s is not a Linux kernel: it has no version string", k.VMLinux)
	}
	if name := filepath.Join(dir, bzImageName); exists(name) {
		k.BzImage = name
	}
	if name := filepath.Join(dir, modulesName); exists(name) {
		k.Modules = name
	}
	return k, nil
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

var versionPattern = regexp.MustCompile(`Linux version ([0-9][^ \x00]{1,63}) \(`)

// kernelVersion finds the version in the text of /proc/version (linux_banner in init/version.c).
func kernelVersion(elf []byte) string {
	const marker = "Linux version "
	for rest := elf; ; {
		i := bytes.Index(rest, []byte(marker))
		if i < 0 {
			return ""
		}
		rest = rest[i:]
		if m := versionPattern.FindSubmatch(rest[:min(len(rest), 256)]); m != nil {
			return string(m[1])
		}
		rest = rest[len(marker):]
	}
}

// cloudPattern matches the names of packages with a signed cloud kernel of the series. The names
// end with Debian's revision of the ABI, such as "+deb12" or "+deb13+1".
var cloudPattern = regexp.MustCompile(`^linux-image-(` + regexp.QuoteMeta(kernelSeries) +
	`\.[0-9]+[0-9a-z+~.]*-cloud-amd64)$`)

// newestCloudKernel returns the name of the newest package that apt offers.
func newestCloudKernel(ctx context.Context) (string, error) {
	text, err := output(ctx, nil, 16*mib, "apt-cache", "search", "--names-only",
		"^linux-image-"+regexp.QuoteMeta(kernelSeries)+`\..*-cloud-amd64$`)
	if err != nil {
		return "", err
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		if name, _, _ := strings.Cut(line, " - "); cloudPattern.MatchString(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "", &MissingError{Problem: "apt on this host offers no linux-image-" + kernelSeries + ".*-cloud-amd64: " +
			"enable bookworm-security or Debian 13 in apt's sources and run apt-get update"}
	}
	return slices.MaxFunc(names, debpkg.CompareVersions), nil
}

// newestCached returns the version of the newest Debian kernel in the cache.
func newestCached(parent string) (string, error) {
	entries, err := os.ReadDir(parent)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	var versions []string
	for _, e := range entries {
		if cloudPattern.MatchString("linux-image-" + e.Name()) {
			versions = append(versions, e.Name())
		}
	}
	if len(versions) == 0 {
		return "", fmt.Errorf("no kernel in %s either", parent)
	}
	return slices.MaxFunc(versions, debpkg.CompareVersions), nil
}
